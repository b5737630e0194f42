// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestResourceConfigRefusedByFieldAndValue(t *testing.T) {
	b := newBackend(t)
	for name, tc := range map[string]struct {
		change func(*etcd3.ResourceConfig)
		want   []string
	}{
		"no resource":       {func(c *etcd3.ResourceConfig) { c.GroupResource.Resource = "" }, []string{"GroupResource", "example.test"}},
		"no prefix":         {func(c *etcd3.ResourceConfig) { c.ResourcePrefix = "" }, []string{"ResourcePrefix", `""`}},
		"root prefix":       {func(c *etcd3.ResourceConfig) { c.ResourcePrefix = "/" }, []string{"ResourcePrefix", `"/"`}},
		"relative prefix":   {func(c *etcd3.ResourceConfig) { c.ResourcePrefix = "pods" }, []string{"ResourcePrefix", `"pods"`}},
		"prefix with a gap": {func(c *etcd3.ResourceConfig) { c.ResourcePrefix = "/a//b" }, []string{"ResourcePrefix", `"/a//b"`}},
		"parent prefix":     {func(c *etcd3.ResourceConfig) { c.ResourcePrefix = "/a/../b" }, []string{"ResourcePrefix", `"/a/../b"`}},
		"no codec":          {func(c *etcd3.ResourceConfig) { c.Codec = nil }, []string{"Codec", "nil"}},
		"no new":            {func(c *etcd3.ResourceConfig) { c.NewFunc = nil }, []string{"NewFunc", "nil"}},
		"no new list":       {func(c *etcd3.ResourceConfig) { c.NewListFunc = nil }, []string{"NewListFunc", "nil"}},
		"lease reuse":       {func(c *etcd3.ResourceConfig) { c.LeaseManagerConfig.ReuseDurationSeconds = -1 }, []string{"ReuseDurationSeconds", "-1"}},
		"lease objects":     {func(c *etcd3.ResourceConfig) { c.LeaseManagerConfig.MaxObjectCount = -2 }, []string{"MaxObjectCount", "-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := pods("pods")
			require.NoError(t, c.Validate())
			c.ResourcePrefix += "/"
			require.NoError(t, c.Validate())
			tc.change(&c)
			s, err := b.Storage(c)
			require.Error(t, err)
			require.Nil(t, s)
			for _, want := range tc.want {
				require.Contains(t, err.Error(), want)
			}
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, c.Validate().Error(), err.Error())
		})
	}
}

// rawStorage opens a store as an API server's decorator does.
func rawStorage(b *etcd3.Backend, change func(*storagebackend.ConfigForResource)) (storage.Interface, func(), error) {
	c := pods("pods")
	cfg := storagebackend.NewDefaultConfig("", codec).ForResource(c.GroupResource)
	if change != nil {
		change(cfg)
	}
	s, destroy, err := decoration.Open(b.RawStorage, decoration.Request{Config: cfg, NewFunc: c.NewFunc, NewListFunc: c.NewListFunc, ResourcePrefix: c.ResourcePrefix})
	return s, destroy, err
}

func TestRawStorage(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), Prefix: "/own"})

	for name, tc := range map[string]struct {
		change func(*storagebackend.ConfigForResource)
		key    string
	}{
		"the backend's prefix": {nil, "/own/pods/ns/a"},
		"its own prefix":       {func(c *storagebackend.ConfigForResource) { c.Prefix = "/other" }, "/other/pods/ns/a"},
		"the same servers": {func(c *storagebackend.ConfigForResource) {
			c.Prefix, c.Transport.ServerList = "third", []string{srv.Endpoints()[0] + "/", srv.Endpoints()[0]}
		}, "/third/pods/ns/a"},
	} {
		t.Run(name, func(t *testing.T) {
			s, destroy, err := rawStorage(b, tc.change)
			require.NoError(t, err)
			create(t, s, "/pods/ns/a")
			resp, err := b.Client().Get(testContext(t), tc.key)
			require.NoError(t, err)
			require.Len(t, resp.Kvs, 1)
			require.True(t, s.(interface{ WatchProgress() bool }).WatchProgress())
			destroy()
			destroy()
			_, err = s.Watch(testContext(t), "/pods/", storage.ListOptions{Predicate: storage.Everything})
			require.ErrorIs(t, err, etcd3.ErrClosed)
			require.NoError(t, b.Healthy(testContext(t)), "the backend stays open")
		})
	}

	for name, tc := range map[string]struct {
		change func(*storagebackend.ConfigForResource)
		want   []string
	}{
		"other servers": {func(c *storagebackend.ConfigForResource) { c.Transport.ServerList = []string{"http://other:2379"} },
			[]string{"ServerList", "http://other:2379", srv.Endpoints()[0]}},
		"other type":   {func(c *storagebackend.ConfigForResource) { c.Type = "etcd2" }, []string{"Type", "etcd2"}},
		"bad prefix":   {func(c *storagebackend.ConfigForResource) { c.Prefix = "/a/../b" }, []string{"Prefix", "/a/../b"}},
		"no codec":     {func(c *storagebackend.ConfigForResource) { c.Codec = nil }, []string{"Codec"}},
		"lease config": {func(c *storagebackend.ConfigForResource) { c.LeaseManagerConfig.MaxObjectCount = -1 }, []string{"MaxObjectCount", "-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := rawStorage(b, tc.change)
			require.Error(t, err)
			for _, want := range append(tc.want, "pods.example.test") {
				require.Contains(t, err.Error(), want)
			}
		})
	}
	_, _, err := decoration.Open(b.RawStorage, decoration.Request{ResourcePrefix: ""})
	require.Error(t, err)
}

// suffix is a transformer that shows in the stored bytes.
type suffix struct{ value.Transformer }

func (suffix) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	return bytes.TrimSuffix(data, []byte("#")), false, nil
}

func (suffix) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return append(bytes.Clone(data), '#'), nil
}

func TestTransformer(t *testing.T) {
	b := newBackend(t)
	c := pods("pods")
	c.Transformer = suffix{}
	s := newStore(t, b, c)
	create(t, s, "/pods/ns/a")
	resp, err := b.Client().Get(testContext(t), "/registry/pods/ns/a")
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(resp.Kvs[0].Value, []byte("#")))
	require.NoError(t, s.Get(testContext(t), "/pods/ns/a", storage.GetOptions{}, &example.Pod{}))

	// Without a transformer, data that looks encrypted is refused, not misread.
	_, err = b.Client().Put(testContext(t), "/registry/pods/ns/b", "k8s:enc:secretbox:v1:x")
	require.NoError(t, err)
	err = newStore(t, b, pods("pods")).Get(testContext(t), "/pods/ns/b", storage.GetOptions{}, &example.Pod{})
	require.ErrorContains(t, err, "identity transformer")
}

func TestLeaseManagerConfig(t *testing.T) {
	b := newBackend(t)
	leases := func(c apietcd3.LeaseManagerConfig, resource string) int {
		rc := pods(resource)
		rc.LeaseManagerConfig = c
		s := newStore(t, b, rc)
		before, err := b.Client().Leases(testContext(t))
		require.NoError(t, err)
		for _, name := range []string{"a", "b", "c", "d"} {
			require.NoError(t, s.Create(testContext(t), "/"+resource+"/ns/"+name, &example.Pod{}, nil, 3600))
		}
		after, err := b.Client().Leases(testContext(t))
		require.NoError(t, err)
		return len(after.Leases) - len(before.Leases)
	}
	require.Equal(t, 1, leases(apietcd3.LeaseManagerConfig{}, "shared"), "zero: as by default")
	require.Equal(t, 2, leases(apietcd3.LeaseManagerConfig{ReuseDurationSeconds: 60, MaxObjectCount: 2}, "two"))
}
