// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// The labels that the tests' indexes are made of: zone has one value or none, tags
// any number.
const zone, tags = "zone", "tags"

// labelIndexers gives new indexers, because stores keep what they get.
func labelIndexers() cache.Indexers {
	return cache.Indexers{zone: byLabel(zone), tags: byLabel(tags)}
}

// byLabel indexes by the words, with dots between them, of a label.
func byLabel(label string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		value, ok := accessor.GetLabels()[label]
		if !ok {
			return nil, nil
		}
		return strings.Split(value, "."), nil
	}
}

// indexed is what cache.Indexer and cache.ThreadSafeStore have in common.
type indexed interface {
	List() []any
	ListKeys() []string
	Index(name string, obj any) ([]any, error)
	IndexKeys(name, value string) ([]string, error)
	ListIndexFuncValues(name string) []string
	ByIndex(name, value string) ([]any, error)
	GetIndexers() cache.Indexers
	AddIndexers(cache.Indexers) error
}

// requireIndexed compares every index with one that is made again from all objects.
func requireIndexed(t *testing.T, s indexed) {
	t.Helper()
	for name, function := range s.GetIndexers() {
		want := map[string][]any{}
		for _, obj := range s.List() {
			values, err := function(obj)
			require.NoError(t, err)
			for _, value := range values {
				want[value] = append(want[value], obj)
			}
			sharing, err := s.Index(name, obj)
			require.NoError(t, err)
			require.Equal(t, len(values) > 0, slices.Contains(sharing, obj), "an object is among those that share a value of %s with it", name)
		}
		for _, value := range s.ListIndexFuncValues(name) {
			require.Contains(t, want, value, "the index %s has a value without objects", name)
		}
		require.Len(t, s.ListIndexFuncValues(name), len(want), "index %s", name)
		for value, objects := range want {
			got, err := s.ByIndex(name, value)
			require.NoError(t, err)
			require.ElementsMatch(t, objects, got, "index %s, value %s", name, value)
			keys, err := s.IndexKeys(name, value)
			require.NoError(t, err)
			require.ElementsMatch(t, keysOf(t, objects), keys, "index %s, value %s", name, value)
		}
	}
}

func keysOf(t *testing.T, objects []any) []string {
	t.Helper()
	var keys []string
	for _, obj := range objects {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		require.NoError(t, err)
		keys = append(keys, key)
	}
	return keys
}

// indexedStore is a store that a reflector fills, and its indexes.
type indexedStore interface {
	cache.Store
	indexed
}

func newIndexer() indexedStore {
	return cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, labelIndexers())
}

// TestStoreVersion: a store that tells how far it has come tells the resourceVersion
// of the last delivery, deletions too.
func TestStoreVersion(t *testing.T) {
	bothTransports(t, func(t *testing.T, fx *fixture, via transport) {
		f, s := newFeed(t, fx, via), newIndexer()
		x := f.create(t, "x")
		r := f.reflect(t, s)
		awaitList(t, r)
		requireListed := func(since *fleetv1.Device) { // bookmarks move only the reflector on
			t.Helper()
			rv := number(t, s.LastStoreSyncResourceVersion())
			require.GreaterOrEqual(t, rv, number(t, since.ResourceVersion))
			require.LessOrEqual(t, rv, number(t, r.LastSyncResourceVersion()))
		}
		requireListed(x)
		x = f.update(t, "x", "two")
		reach(t, r, x)
		require.Equal(t, x.ResourceVersion, s.LastStoreSyncResourceVersion())
		f.delete(t, "x")
		deletion := f.deleted(t, x)
		reachVersion(t, r, number(t, deletion))
		require.Equal(t, deletion, s.LastStoreSyncResourceVersion(), "a deletion's event carries its resourceVersion")
		var y *fleetv1.Device
		f.relist(t, r, func() { y = f.create(t, "y") })
		requireListed(y)
		fx.requireEqual(t, s, f.namespace)
	})
}
