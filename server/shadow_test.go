// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"

	"github.com/kube-watchcache/watchcache/cacher"
)

// TestShadow: under concurrent writes, a server on the shipped cacher and the cache in its
// shadow answer GETs, LISTs and WATCHes of all kinds alike.
func TestShadow(t *testing.T) {
	for name, resource := range map[string]*resourceUnderTest{"pods": pods(t), "devices": devices(t)} {
		t.Run(name, func(t *testing.T) {
			s := serveTwins(t, resource, auditinternal.LevelMetadata, cacher.WithOptions(&cacher.Options{Shadow: 1}))
			require.Nil(t, s.cache, "the shipped cacher answers")
			cache := cacher.CacheOf(s.store.Storage.Storage)
			require.NoError(t, cache.Wait(t.Context()))
			require.Eventually(t, func() bool { return s.store.ReadinessCheckFunc() == nil }, time.Minute, 10*time.Millisecond)

			ctx, cancel := context.WithCancel(t.Context())
			var writing, reading sync.WaitGroup
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			for writer := range uint64(3) {
				writing.Go(func() {
					random := rand.New(rand.NewPCG(seed, writer)) //nolint:gosec // not for secrets
					for n := range 100 {
						namespace, name := fmt.Sprintf("ns%d", random.IntN(3)), fmt.Sprintf("w%d-%02d", writer, random.IntN(25))
						if random.IntN(4) == 0 {
							_ = s.tryRemove(namespace, name) // it may not be there
						} else if resource.group != example.GroupName {
							_ = s.tryPut(testDevice(namespace, name, n))
						} else {
							_ = s.tryPut(testPod(namespace, name, n))
						}
					}
				})
			}
			for _, follow := range []func(context.Context, *twins){getAlways, listAlways, watchAlways, askAlways(resource)} {
				reading.Go(func() {
					for ctx.Err() == nil {
						follow(ctx, s)
					}
				})
			}
			writing.Wait()
			cancel()
			reading.Wait()
			// The comparisons of the last watches end when their events have come.
			require.Eventually(t, func() bool { return len(cache.Status().Watchers) == 0 }, time.Minute, 10*time.Millisecond)
			status := cache.Status()
			t.Logf("compared %v, skipped %v", status.Totals.ShadowCompared, status.Totals.ShadowSkipped)
			require.Empty(t, status.Totals.ShadowDiffered, "%+v", status.Errors)
			for _, kind := range []string{"get", "list", "watch"} {
				require.NotZero(t, status.Totals.ShadowCompared[kind], kind)
			}
		})
	}
}

// getAlways reads single objects, most of them there.
func getAlways(ctx context.Context, s *twins) {
	for _, version := range []string{"", "0"} {
		ctx := request.WithNamespace(ctx, fmt.Sprintf("ns%d", rand.IntN(3)))
		_, _ = s.store.Get(ctx, fmt.Sprintf("w%d-%02d", rand.IntN(3), rand.IntN(30)), &metav1.GetOptions{ResourceVersion: version})
	}
}

// listAlways lists whole namespaces, selections and pages, at all versions.
func listAlways(ctx context.Context, s *twins) {
	for _, namespace := range []string{"", "ns1"} {
		ctx := request.WithNamespace(ctx, namespace)
		for _, version := range []string{"", "0"} {
			for _, selector := range []labels.Selector{nil, labels.SelectorFromSet(labels.Set{"app": "a"})} {
				for _, limit := range []int64{0, 7} {
					opts := &internalversion.ListOptions{ResourceVersion: version, LabelSelector: selector, Limit: limit}
					list, err := s.store.List(ctx, opts)
					for err == nil {
						var page metav1.ListInterface
						if page, err = meta.ListAccessor(list); err != nil || page.GetContinue() == "" {
							break
						}
						opts.ResourceVersion, opts.Continue = "", page.GetContinue()
						list, err = s.store.List(ctx, opts)
					}
				}
			}
		}
		list, err := s.store.List(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "w1-01")})
		if err != nil {
			continue
		}
		accessor, _ := meta.ListAccessor(list)
		_, _ = s.store.List(ctx, &internalversion.ListOptions{ResourceVersion: accessor.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	}
}

// watchAlways opens watches of each kind, reads some, and stops or abandons them.
func watchAlways(ctx context.Context, s *twins) {
	list, err := s.store.List(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return
	}
	accessor, _ := meta.ListAccessor(list)
	yes := true
	for _, opts := range []*internalversion.ListOptions{
		{ResourceVersion: accessor.GetResourceVersion()},
		{ResourceVersion: accessor.GetResourceVersion(), AllowWatchBookmarks: true, LabelSelector: labels.SelectorFromSet(labels.Set{"app": "b"})},
		{}, {ResourceVersion: "0"},
		{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, ResourceVersion: "0"},
	} {
		ctx, abandon := context.WithCancel(request.WithNamespace(ctx, []string{"", "ns2"}[rand.IntN(2)]))
		w, err := s.store.Watch(ctx, opts)
		if err != nil {
			abandon()
			continue
		}
		for range rand.IntN(4) * 40 { // some clients never read
			if event, ok := <-w.ResultChan(); !ok || event.Type == watch.Error {
				break
			}
		}
		if rand.IntN(2) == 0 {
			w.Stop()
		}
		abandon()
	}
}

// askAlways sends LISTs through the server's handlers.
func askAlways(r *resourceUnderTest) func(context.Context, *twins) {
	return func(ctx context.Context, s *twins) {
		for _, query := range []url.Values{{}, {"resourceVersion": {"0"}}, {"limit": {"5"}}} {
			resource := s.store.DefaultQualifiedResource.Resource
			_, _ = tryAsk(ctx, s.with, "/apis/"+r.group+"/v1/"+resource+"?"+query.Encode(), asJSON, false)
		}
	}
}

// TestShadowSwitch: Install, Share and CustomResources put caches into the shadow of the
// shipped cacher, the page shows them, and nothing of ours serves.
func TestShadowSwitch(t *testing.T) {
	etcd := startEtcdFor(t)
	fresh := func() generic.RESTOptionsGetter {
		o := genericoptions.NewEtcdOptions(etcd)
		return o.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: o.StorageConfig}, nil)
	}
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
