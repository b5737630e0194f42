// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kube-watchcache/watchcache/conformance"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// openEtcd opens a backend for one test: an etcd inside the process, and a
// storage.Interface of Pods in it.
func openEtcd(t *testing.T) conformance.Backend {
	server, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	etcd, err := etcd3.Open(t.Context(), etcd3.Config{Endpoints: server.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	storage, err := etcd.Storage(etcd3.ResourceConfig{
		GroupResource: conformance.Resource(), ResourcePrefix: conformance.Prefix, Codec: conformance.Codec(),
		NewFunc: conformance.NewPod, NewListFunc: conformance.NewPodList,
	})
	if err != nil {
		t.Fatal(err)
	}
	return conformance.Backend{
		Storage: storage, // it has a method WatchProgress, so that nothing need be said of that
		Compact: func(ctx context.Context, rv uint64) error {
			_, err := etcd.Client().Compact(ctx, int64(rv), clientv3.WithCompactPhysical())
			return err
		},
		Touch: func(ctx context.Context) (uint64, error) {
			put, err := etcd.Client().Put(ctx, "/unrelated", "")
			if err != nil {
				return 0, err
			}
			return uint64(put.Header.Revision), nil
		},
		Deviations: map[string]string{
			"Compaction/RunTestCompactRevision": "etcd tells nobody of a compaction that is not an API server's",
		},
	}
}

// The test of a backend is one line, in a function
//
//	func TestBackend(t *testing.T)
//
// and openEtcd, the rest of this example, is what one writes for a backend.
func Example() {
	var t *testing.T // the parameter of TestBackend
	conformance.Run(t, openEtcd)
}
