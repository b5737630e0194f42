// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"

	"github.com/kube-watchcache/watchcache/cacher"
)

// TestShadowSwitch: Install, Share and CustomResources put caches into the shadow of the
// shipped cacher, the page shows them, and nothing of ours serves.
func TestShadowSwitch(t *testing.T) {
	etcd := startEtcdFor(t)
	fresh := func() generic.RESTOptionsGetter { return getterFor(etcd) }
	front, behind := &genericapiserver.Config{RESTOptionsGetter: fresh()}, &genericapiserver.Config{RESTOptionsGetter: fresh()}
	options := cacher.Options{Shadow: 0.5, Shipped: []string{"carp." + example.GroupName}}
	require.NoError(t, Install(front, cacher.WithOptions(&options)))
	options.Shadow = 0 // too late
	require.NoError(t, Share(front, behind))
	custom, err := CustomResources(behind, fresh())
	require.NoError(t, err)
	installed := front.HealthzChecks[0].(marker).installation
	require.True(t, installed.inShadow)
	caches := sets.New[*cacher.Cacher]()
	for _, getter := range []generic.RESTOptionsGetter{front.RESTOptionsGetter, behind.RESTOptionsGetter, custom} {
		opened, destroy := open(t, getter, "pods")
		cache := cacher.CacheOf(opened)
		require.NotNil(t, cache)
		require.NotSame(t, opened, storage.Interface(cache), "the shipped cacher answers")
		require.Equal(t, 0.5, cache.Status().Shadow)
		require.Contains(t, installed.all(), cache)
		require.Nil(t, cache.Config().Lists)
		caches.Insert(cache)
		destroy()
		require.Empty(t, installed.all())
		require.Error(t, cache.Wait(t.Context()), "the cache in the shadow has ended")

		carp, destroy := open(t, getter, "carp")
		require.IsType(t, &shipped.CacheDelegator{}, carp, "without a shadow")
		destroy()
	}
	require.Len(t, caches, 3)
}
