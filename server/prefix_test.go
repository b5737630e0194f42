// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// TestSameKeysAsShipped: with any --etcd-prefix, what Install stores is where
// k8s.io/apiserver's own storage would have stored it, and each reads what the
// other wrote.
func TestSameKeysAsShipped(t *testing.T) {
	ctx := t.Context()
	etcd, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	defer etcd.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	for prefix, want := range map[string][]string{
		"":            {"/pods/ns/cached", "/pods/ns/plain"},
		"/":           {"/pods/ns/cached", "/pods/ns/plain"},
		"registry":    {"/registry/pods/ns/cached", "/registry/pods/ns/plain"},
		"/registry/":  {"/registry/pods/ns/cached", "/registry/pods/ns/plain"},
		"/a/b":        {"/a/b/pods/ns/cached", "/a/b/pods/ns/plain"},
		"/a/b/../c//": nil, // refused
	} {
		t.Run("prefix "+prefix, func(t *testing.T) {
			config := storagebackend.NewDefaultConfig(prefix, poddata.Codec())
			config.Transport.ServerList = etcd.Endpoints()
			resource := config.ForResource(poddata.Resource)
			cached, destroy, err := decoration.Call(cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw(newPool().rawStorage))), decoration.Request{Config: resource, ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, NewFunc: poddata.New, NewListFunc: poddata.NewList, GetAttrsFunc: poddata.Attrs, IndexerFuncs: poddata.Triggers()})
			if want == nil {
				require.ErrorContains(t, err, "Prefix")
				return
			}
			require.NoError(t, err)
			defer destroy()
			plain, destroyPlain, err := decoration.Open(generic.NewRawStorage, decoration.Request{Config: resource, NewFunc: poddata.New, NewListFunc: poddata.NewList, ResourcePrefix: poddata.Prefix})
			require.NoError(t, err)
			defer destroyPlain()

			write(t, cached, "cached")
			write(t, plain, "plain")
			for _, s := range []storage.Interface{cached, plain} {
				for _, name := range []string{"cached", "plain"} {
					require.NoError(t, s.Get(ctx, "/pods/ns/"+name, storage.GetOptions{}, &example.Pod{}), name)
				}
			}
			require.Equal(t, want, podKeys(t, ctx, client))
		})
	}
}

func write(t *testing.T, s storage.Interface, name string) {
	t.Helper()
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	require.NoError(t, s.Create(t.Context(), "/pods/ns/"+name, pod, nil, 0))
}

// podKeys returns the keys of Pods, wherever they are, and removes all keys.
func podKeys(t *testing.T, ctx context.Context, client *clientv3.Client) (keys []string) {
	t.Helper()
	all, err := client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range all.Kvs {
		if slices.Contains([]string{"cached", "plain"}, filepath.Base(string(kv.Key))) {
			keys = append(keys, string(kv.Key))
		}
	}
	_, err = client.Delete(ctx, "\x00", clientv3.WithFromKey())
	require.NoError(t, err)
	return keys
}
