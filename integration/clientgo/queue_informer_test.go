// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// plainInformer is one way to make a controller with a store and a handler.
type plainInformer struct {
	name                string
	indexes, transforms bool
	open                func(cache.InformerOptions) (cache.Store, cache.Controller)
}

// plainInformers are all of them. What they can't be given, they leave out.
var plainInformers = []plainInformer{
	{"NewInformerWithOptions", true, true, cache.NewInformerWithOptions},
	{"NewInformer", false, false, func(o cache.InformerOptions) (cache.Store, cache.Controller) {
		return cache.NewInformer(o.ListerWatcher, o.ObjectType, o.ResyncPeriod, o.Handler)
	}},
	{"NewIndexerInformer", true, false, func(o cache.InformerOptions) (cache.Store, cache.Controller) {
		return cache.NewIndexerInformer(o.ListerWatcher, o.ObjectType, o.ResyncPeriod, o.Handler, o.Indexers)
	}},
	{"NewTransformingInformer", false, true, func(o cache.InformerOptions) (cache.Store, cache.Controller) {
		return cache.NewTransformingInformer(o.ListerWatcher, o.ObjectType, o.ResyncPeriod, o.Handler, o.Transform)
	}},
	{"NewTransformingIndexerInformer", true, true, func(o cache.InformerOptions) (cache.Store, cache.Controller) {
		return cache.NewTransformingIndexerInformer(o.ListerWatcher, o.ObjectType, o.ResyncPeriod, o.Handler, o.Indexers, o.Transform)
	}},
}

// attentive is a handler that notes what it is told, and compares it with the
// store, which must have changed before.
type attentive struct {
	store func() cache.Store
	mu    struct {
		sync.Mutex
		told  map[string][]string
		wrong []error
	}
}

func newAttentive(store func() cache.Store) *attentive {
	a := &attentive{store: store}
	a.mu.told = map[string][]string{}
	return a
}

func (a *attentive) note(obj any, what string, stored bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		a.mu.wrong = append(a.mu.wrong, err)
	}
	a.mu.told[key] = append(a.mu.told[key], what)
	if item, exists, err := a.store().GetByKey(key); err != nil || exists != stored || exists && item != obj {
		a.mu.wrong = append(a.mu.wrong, fmt.Errorf("at %s of %s the store has it: %t (error: %w)", what, key, exists, err))
	}
}

// OnAdd implements cache.ResourceEventHandler.
func (a *attentive) OnAdd(obj any, initial bool) {
	if initial {
		a.note(obj, "listed "+resourceVersionOf(obj), true)
	} else {
		a.note(obj, "added "+resourceVersionOf(obj), true)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (a *attentive) OnUpdate(old, obj any) {
	a.note(obj, "updated "+resourceVersionOf(old)+" to "+resourceVersionOf(obj), true)
}

// OnDelete implements cache.ResourceEventHandler.
func (a *attentive) OnDelete(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		a.note(obj, "missed after "+resourceVersionOf(unknown.Obj), false)
	} else {
		a.note(obj, "deleted "+resourceVersionOf(obj), false)
	}
}

// told gives what was told of each device, by its name.
func (a *attentive) told(t *testing.T, f *feed) map[string][]string {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Empty(t, a.mu.wrong)
	out := map[string][]string{}
	for key, told := range a.mu.told {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		require.NoError(t, err)
		require.Equal(t, f.namespace, namespace)
		out[name] = told
	}
	return out
}

// transformedKind is what the tests' transformer sets. It is not stored, and does
// not stand in the way when bytes are compared.
const transformedKind = "Transformed"

func setTransformedKind(obj any) (any, error) {
	obj.(runtime.Object).GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Kind: transformedKind})
	return obj, nil
}

// TestPlainInformers lets all of them follow one namespace, and then asks each what
// its handler was told. It must be exactly what happened; and what happened while
// it was away comes as a difference.
func TestPlainInformers(t *testing.T) {
	bothWays(t, func(t *testing.T, w *world, via way) {
		f := newFeed(t, w, via)
		x, y, z := f.create(t, "x"), f.create(t, "y"), f.create(t, "z")
		stores, handlers := make([]cache.Store, len(plainInformers)), make([]*attentive, len(plainInformers))
		var away []absent
		for i, p := range plainInformers {
			own := feedOf(t, w, via, f.namespace)
			handlers[i] = newAttentive(func() cache.Store { return stores[i] })
			var c cache.Controller
			stores[i], c = p.open(cache.InformerOptions{
				ListerWatcher: own.source, ObjectType: via.example(), Handler: handlers[i], Transform: setTransformedKind,
				Indexers: cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			})
			require.False(t, c.HasSynced())
			runs(t, c.RunWithContext)
			requireClosed(t, c.HasSyncedChecker().Done())
			away = append(away, absent{own.source, c, via.example()})
		}
		x2, late := f.update(t, "x", "two"), f.create(t, "late")
		f.delete(t, "late")
		late2 := f.create(t, "late")
		requireStores(t, f, stores)
		var x3, late3, unseen *fleetv1.Device
		relist(t, w, func() {
			x3 = f.update(t, "x", "three")
			f.delete(t, "y")
			f.delete(t, "late")
			late3, unseen = f.create(t, "late"), f.create(t, "unseen")
		}, away...)
		requireStores(t, f, stores)

		gone := f.deleted(t, late)
		want := map[string][]string{
			"x":      {"listed " + x.ResourceVersion, "updated " + x.ResourceVersion + " to " + x2.ResourceVersion, "updated " + x2.ResourceVersion + " to " + x3.ResourceVersion},
			"y":      {"listed " + y.ResourceVersion, "missed after " + y.ResourceVersion},
			"z":      {"listed " + z.ResourceVersion, "updated " + z.ResourceVersion + " to " + z.ResourceVersion},
			"late":   {"added " + late.ResourceVersion, "deleted " + gone, "added " + late2.ResourceVersion, "updated " + late2.ResourceVersion + " to " + late3.ResourceVersion},
			"unseen": {"added " + unseen.ResourceVersion},
		}
		for i, p := range plainInformers {
			t.Run(p.name, func(t *testing.T) {
				// The store is ahead of the handler.
				eventually(t, "the handler is told", func(context.Context) error {
					told := handlers[i].told(t, f)
					return errIf(!assert.ObjectsAreEqual(want, told), "the handler was told\n%v\nand not\n%v", told, want)
				})
				requireKinds(t, stores[i], p.transforms)
				indexer, ok := stores[i].(cache.Indexer)
				require.True(t, ok)
				require.Equal(t, p.indexes, len(indexer.GetIndexers()) == 1)
				if p.indexes {
					keys, err := indexer.IndexKeys(cache.NamespaceIndex, f.namespace)
					require.NoError(t, err)
					require.ElementsMatch(t, indexer.ListKeys(), keys)
				}
			})
		}
	})
}

func requireStores(t *testing.T, f *feed, stores []cache.Store) {
	t.Helper()
	for _, s := range stores {
		f.world.requireEqual(t, s, f.namespace)
	}
}

// requireKinds wants all objects in the store to have been transformed, or none.
func requireKinds(t *testing.T, s cache.Store, transformed bool) {
	t.Helper()
	for _, obj := range s.List() {
		require.Equal(t, transformed, obj.(runtime.Object).GetObjectKind().GroupVersionKind().Kind == transformedKind)
	}
}
