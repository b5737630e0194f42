// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/keptlists"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// TestShadowSwitch: Install, Share and CustomResources put caches into the shadow of the
// shipped cacher, the page shows them, and nothing of ours serves.
func TestShadowSwitch(t *testing.T) {
	etcd := startEtcdFor(t)
	fresh := func() generic.RESTOptionsGetter { return getterFor(etcd) }
	front, behind := &genericapiserver.Config{RESTOptionsGetter: fresh()}, &genericapiserver.Config{RESTOptionsGetter: fresh()}
	options := Options{Shadow: 0.5, Shipped: []string{"carp." + example.GroupName}}
	require.NoError(t, Install(front, WithOptions(&options)))
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

// shadowed opens a storage with a cache in the shadow of the shipped cacher.
func shadowed(t *testing.T, flags Options, options ...cacher.Option) (s storage.Interface, cache *cacher.Cacher, destroy func()) {
	t.Helper()
	flags.Shadow = 1
	s, destroy, err := openPods(poddata.Resource, append(options, cacher.WithRawStorage(decoration.AsRaw((&rawStores{}).open)), WithOptions(&flags))...)
	require.NoError(t, err)
	t.Cleanup(destroy)
	cache = cacher.CacheOf(s)
	require.NotNil(t, cache)
	require.NoError(t, cache.Wait(t.Context()))
	require.Eventually(t, func() bool { return s.ReadinessCheck() == nil }, 30*time.Second, time.Millisecond, "the shipped cacher is ready")
	return s, cache, destroy
}

// A difference is counted, remembered and logged, once a minute, without anything of the
// objects. The client gets the shipped cacher's answer.
func TestShadowFindsADifference(t *testing.T) {
	const asked = 3
	log := logged(t)
	s, cache, destroy := shadowed(t, Options{}, cacher.Configure(func(c *cacher.Config) {
		c.GetAttrsFunc = func(o runtime.Object) (labels.Set, fields.Set, error) { // labels are lost
			_, all, err := poddata.Attrs(o)
			return nil, all, err
		}
	}))
	for _, name := range []string{"secret/one", "secret/two"} {
		require.NoError(t, s.Create(t.Context(), poddata.Prefix+name, poddata.Pod(name, "app=secret"), &example.Pod{}, 0))
	}
	for range asked {
		list := &example.PodList{}
		opts := storage.ListOptions{Recursive: true, Predicate: poddata.Predicate("app=secret", "")}
		require.NoError(t, s.GetList(t.Context(), poddata.Prefix, opts, list))
		require.Len(t, list.Items, 2)
	}
	require.Eventually(t, func() bool {
		status := cache.Status()
		return status.Totals.ShadowDiffered["list"] == asked && status.LastError != nil && status.LastError.Times == asked
	}, 30*time.Second, time.Millisecond, "the differences are counted")
	status := cache.Status()
	require.EqualValues(t, asked, status.Totals.ShadowCompared["list"])
	require.Equal(t, "list: number of items", status.LastError.Message)
	require.Contains(t, status.LastError.Summary, "differs from the shipped cacher")
	require.EqualValues(t, 1, status.Shadow)
	destroy() // no line comes any more
	lines := log.lines("differs from the shipped cacher")
	require.Len(t, lines, 1)
	for _, word := range []string{`resource="pods"`, `kind="list"`, `difference="number of items"`, "shippedVersion=", "shadowVersion="} {
		require.Contains(t, lines[0], word)
	}
	require.NotContains(t, lines[0], "secret")
}

// The cache in the shadow serves nobody else: it shares no lists, does not sleep, does not
// ask storage, and ends with the shipped cacher.
func TestShadowStandsBack(t *testing.T) {
	s, cache, destroy := shadowed(t, Options{LazyStart: true, IdleTimeout: time.Minute},
		cacher.Configure(func(c *cacher.Config) { c.Lists = &keptlists.Encoder{} }))
	config := cache.Config()
	require.False(t, config.LazyStart)
	require.Zero(t, config.IdleTimeout)
	require.Nil(t, config.Lists)
	require.True(t, config.DisableSizeEstimation)
	require.Nil(t, cacher.CacheOf(config.Storage))
	require.Same(t, cache, cacher.CacheOf(cache))
	require.Nil(t, cacher.CacheOf(&shipped.CacheDelegator{}))

	w, err := s.Watch(t.Context(), poddata.Prefix, storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	require.NoError(t, s.Create(t.Context(), poddata.Prefix+"a/one", poddata.Pod("a/one"), &example.Pod{}, 0))
	event := <-w.ResultChan()
	require.Equal(t, watch.Added, event.Type)
	require.Equal(t, "one", event.Object.(runtime.CacheableObject).GetObject().(*example.Pod).Name)
	destroy()
	_, open := <-w.ResultChan()
	require.False(t, open)
	require.Error(t, cache.Wait(t.Context()))
}

// A configuration that the shipped cacher refuses names the flag, and opens nothing.
func TestShadowNeedsTheShippedCacher(t *testing.T) {
	raw := &rawStores{}
	_, _, err := openPodsWith(nil, poddata.Resource, cacher.WithRawStorage(decoration.AsRaw(raw.open)), WithOptions(&Options{Shadow: 0.5}))
	require.ErrorContains(t, err, "--watch-cache-shadow: the shipped cacher of")
	require.ErrorContains(t, err, "Codec")
	require.Equal(t, raw.opened.Load(), raw.destroyed.Load())
}
