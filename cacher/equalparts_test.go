// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/realistic"
)

func sharing(c *cacher.Config) { c.ShareEqualParts = true }

// With ShareEqualParts the labels of two Pods, and of two states of one, are one
// map; without, each has its own.
func TestEqualPartsAreShared(t *testing.T) {
	for name, change := range map[string]func(*cacher.Config){"shared": sharing, "apart": func(*cacher.Config) {}} {
		t.Run(name, func(t *testing.T) {
			store := newStore(poddata.Pod("ns/one", "color=red"), poddata.Pod("ns/two", "color=red"))
			store.Decodes = true
			c := start(t, store, change)
			seen := map[uintptr]bool{}
			see := func(want int) {
				t.Helper()
				list := &example.PodList{}
				require.NoError(t, c.GetList(testContext(t), "/pods/", everything(""), list))
				require.Len(t, list.Items, want)
				for _, pod := range list.Items {
					require.Equal(t, map[string]string{"color": "red"}, pod.Labels)
					seen[reflect.ValueOf(pod.Labels).Pointer()] = true
				}
			}
			see(2)
			changed := poddata.Pod("ns/one", "color=red")
			changed.Annotations = map[string]string{"changed": "yes"}
			put(store, changed)
			see(2)
			put(store, poddata.Pod("ns/three", "color=red"))
			see(3)
			want := 1
			if name == "apart" {
				want = 4
			}
			require.Len(t, seen, want, "maps of labels")
		})
	}
}

// A cache that shares parts has what storage has, to the last field: in lists, in
// events, at every version that a reader still holds, and after its storage's watch
// has broken.
func TestSharedObjectsEqualThoseOfStorage(t *testing.T) {
	pods, err := realistic.Pods(4000)
	require.NoError(t, err)
	custom, err := realistic.CustomResources(1000)
	require.NoError(t, err)
	for _, kind := range []realistic.Kind{pods, custom} {
		for _, listed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, listed %v", kind.Name, listed), func(t *testing.T) { compareShared(t, kind, listed) })
		}
	}
}

func compareShared(t *testing.T, kind realistic.Kind, listed bool) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	store := memstore.New(realistic.Prefix, kind.New)
	store.Decodes = true
	write := func(i, updates int) uint64 {
		object := kind.Make(i)
		if updates > 0 {
			kind.Update(object, updates)
		}
		key, err := realistic.Key(object)
		require.NoError(t, err)
		if updates < 0 && store.Objects()[key] != nil {
			return store.Remove(key)
		}
		return store.Put(key, object)
	}
	for i := range 20 {
		write(i, 0)
	}
	c := start(t, store, sharing, func(c *cacher.Config) {
		c.GroupResource, c.ResourcePrefix, c.KeyFunc, c.GetAttrsFunc = kind.Resource, realistic.Prefix, realistic.Key, kind.Attrs
		c.NewFunc, c.NewListFunc, c.Codec, c.ListStorage = kind.New, kind.NewList, kind.Codec, listed
	})
	ctx := testContext(t)
	opts := storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true}
	fromCache, err := c.Watch(ctx, realistic.Prefix, opts)
	require.NoError(t, err)
	defer fromCache.Stop()

	type version struct{ shown, want runtime.Object }
	var held []version
	look := func() {
		shown, want := kind.NewList(), kind.NewList()
		require.NoError(t, c.GetList(ctx, realistic.Prefix, storage.ListOptions{Predicate: storage.Everything, Recursive: true}, shown))
		accessor, err := meta.ListAccessor(shown)
		require.NoError(t, err)
		require.NoError(t, store.GetList(ctx, realistic.Prefix, storage.ListOptions{
			ResourceVersion: accessor.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
			Predicate: storage.Everything, Recursive: true,
		}, want))
		require.Equal(t, want, shown)
		held = append(held, version{shown, want.DeepCopyObject()})
	}
	look()
	events := 20
	var last uint64
	for round := range 10 {
		for range 20 {
			last = write(random.IntN(40), random.IntN(6)-1)
			events++
		}
		look()
		if round == 5 {
			store.BreakWatches(nil)
		}
	}
	latest := map[string]runtime.Object{}
	for range events {
		event, ok := <-fromCache.ResultChan()
		require.True(t, ok)
		require.NotEqual(t, watch.Error, event.Type, "%v", event.Object)
		object := event.Object
		if cached, ok := object.(runtime.CacheableObject); ok {
			object = cached.GetObject()
		}
		key, err := realistic.Key(object)
		require.NoError(t, err)
		if latest[key] = object; event.Type == watch.Deleted {
			delete(latest, key)
		}
		if rv, err := store.Versioner().ObjectResourceVersion(object); err == nil && rv == last {
			break
		}
	}
	stored := store.Objects()
	require.Len(t, latest, len(stored))
	for key, want := range stored {
		require.True(t, equality.Semantic.DeepEqual(want, latest[key]), "%s: %v, want %v", key, latest[key], want)
	}
	for i, v := range held {
		require.Equal(t, v.want, v.shown, "the list of round %d, at the end", i)
	}
}
