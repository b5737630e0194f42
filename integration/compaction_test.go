// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/conformance"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// A version that an API server has compacted is refused, as etcd refuses it. The compaction
// of anybody else shows only where etcd is read: docs/guarantees.md says so.
func TestWhoseCompactionEndsVersions(t *testing.T) {
	ctx := within(t)
	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: etcdserver.Start(t, etcdserver.Config{}).Endpoints(), Prefix: "/compaction"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	stored, destroy, err := decoration.Open(backend.RawStorage, decoration.Request{Config: conformance.ForPods(storagebackend.Config{}), NewFunc: conformance.NewPod, NewListFunc: conformance.NewPodList, ResourcePrefix: conformance.Prefix})
	require.NoError(t, err)
	t.Cleanup(destroy)
	cached, err := cacher.New(podConfig(stored, poddata.JSONCodec()))
	require.NoError(t, err)
	t.Cleanup(cached.Stop)
	require.NoError(t, cached.Wait(ctx))
	create := func(name string) int64 {
		created := &example.Pod{}
		require.NoError(t, cached.Create(ctx, "/pods/a/"+name, poddata.Pod("a/"+name), created, 0))
		rv, err := strconv.ParseInt(created.ResourceVersion, 10, 64)
		require.NoError(t, err)
		return rv
	}
	create("one")
	old := strconv.FormatInt(create("two"), 10)
	latest := create("three")
	at := func(s storage.Interface, limit int64, token string) (*example.PodList, error) {
		opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
		opts.Predicate.Limit, opts.Predicate.Continue = limit, token
		if token == "" {
			opts.ResourceVersion, opts.ResourceVersionMatch = old, metav1.ResourceVersionMatchExact
		}
		list := &example.PodList{}
		return list, s.GetList(ctx, "/pods/", opts, list)
	}
	read := func(s storage.Interface) (*example.PodList, error) { return at(s, 0, "") }
	eventually(t, "the cache has the last version", func(context.Context) (bool, error) {
		_, err := read(cached)
		return err == nil && cached.Status().ResourceVersion >= uint64(latest), nil
	})

	_, err = backend.Client().Compact(ctx, latest)
	require.NoError(t, err)
	_, err = read(stored)
	require.True(t, apierrors.IsResourceExpired(err), "etcd: %v", err)
	list, err := read(cached)
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	page, err := at(cached, 1, "")
	require.NoError(t, err)
	rest, err := at(cached, 1, page.Continue)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, []string{page.Items[0].Name, rest.Items[0].Name})
	require.Equal(t, old, rest.ResourceVersion)

	require.NoError(t, compactAsServersDo(ctx, backend, uint64(create("four"))))
	eventually(t, "the cache refuses the version, and the token for it", func(context.Context) (bool, error) {
		_, version := read(cached)
		_, token := at(cached, 1, page.Continue)
		return apierrors.IsResourceExpired(version) && apierrors.IsResourceExpired(token), nil
	})
}
