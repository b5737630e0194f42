// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/conformance"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// TestBackendConformance judges storage/etcd3 as any other backend: without
// knowing what it is.
func TestBackendConformance(t *testing.T) {
	server := etcdserver.Start(t, etcdserver.Config{})
	noLeaks(t)
	var opened atomic.Int64
	conformance.Run(t, func(t *testing.T) conformance.Backend {
		prefix := "/conformance-" + strconv.FormatInt(opened.Add(1), 10)
		return etcdBackend(t, server.Endpoints(), prefix)
	})
}

// etcdBackend opens keys under a prefix of an etcd.
func etcdBackend(t *testing.T, endpoints []string, prefix string) conformance.Backend {
	t.Helper()
	backend, err := etcd3.Open(t.Context(), etcd3.Config{Endpoints: endpoints, Prefix: prefix})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	// Without progress the clauses about it would be skipped.
	require.True(t, backend.WatchProgress(), "the etcd that go.mod requires reports progress")
	s, destroy, err := decoration.Open(backend.RawStorage, decoration.Request{Config: conformance.ForPods(storagebackend.Config{}), NewFunc: conformance.NewPod, NewListFunc: conformance.NewPodList, ResourcePrefix: conformance.Prefix})
	require.NoError(t, err)
	t.Cleanup(destroy)
	return conformance.Backend{
		Storage: s,
		Compact: func(ctx context.Context, rv uint64) error { return compactAsServersDo(ctx, backend, rv) },
		Touch: func(ctx context.Context) (uint64, error) {
			put, err := backend.Client().Put(ctx, prefix+"-unrelated", "")
			if err != nil {
				return 0, err
			}
			return uint64(put.Header.Revision), nil
		},
	}
}

// compactAsServersDo compacts as another API server would.
func compactAsServersDo(ctx context.Context, backend *etcd3.Backend, rv uint64) error {
	for version, done := int64(0), int64(0); uint64(done) < rv; {
		// A try with the wrong version tells the right one.
		var err error
		version, _, done, err = apietcd3.Compact(ctx, backend.Client(), version, int64(rv))
		if err != nil {
			return err
		}
	}
	return nil
}
