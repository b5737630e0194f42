// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"fmt"
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

// requireIndexed compares every index with one that is made anew from all objects.
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

// requireNames wants the index to have these devices under the value.
func (f *feed) requireNames(t *testing.T, s indexed, name, value string, want ...string) {
	t.Helper()
	keys, err := s.IndexKeys(name, value)
	require.NoError(t, err)
	var wanted []string
	for _, name := range want {
		wanted = append(wanted, f.key(name))
	}
	require.ElementsMatch(t, wanted, keys, "index %s, value %s", name, value)
}

// indexedStore is a store that a reflector fills, and its indexes.
type indexedStore interface {
	cache.Store
	indexed
}

func newIndexer() indexedStore {
	return cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, labelIndexers())
}

func TestIndexer(t *testing.T) {
	promises(t, []clause{
		{"the indexes follow updates and deletions", indexesFollow(newIndexer)},
		{"the indexes are those of the new list after a relist", indexesRelist(newIndexer)},
		{"AddIndexers indexes what is there, and what comes", indexesAdd(newIndexer)},
		{"an unknown index is an error, and so is one that there is already", indexesUnknown(newIndexer)},
		{"readers see whole states while it is fed", indexesConcurrent(newIndexer)},
		{"it tells the resourceVersion of the last delivery, deletions too", storeVersion(newIndexer)},
		{"a transaction does all that it can, and says what not", indexerTransaction},
		{"NewNamespaceKeyedIndexerAndReflector", indexerOfNamespace},
	})
}

func indexesFollow(open func() indexedStore) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		f.createMany(t, "x", 3)
		f.label(t, "x-000", map[string]any{zone: "hh", tags: "a.b"})
		f.label(t, "x-001", map[string]any{zone: "hh"})
		s := open()
		f.reflect(t, s)
		settle := func() {
			t.Helper()
			f.world.requireEqual(t, s, f.namespace)
			requireIndexed(t, s)
		}
		settle()
		f.requireNames(t, s, zone, "hh", "x-000", "x-001")
		f.requireNames(t, s, tags, "b", "x-000")

		f.label(t, "x-002", map[string]any{zone: "hh"}) // appears
		settle()
		f.requireNames(t, s, zone, "hh", "x-000", "x-001", "x-002")
		f.label(t, "x-001", map[string]any{zone: "b"}) // changes
		f.label(t, "x-000", map[string]any{zone: nil, tags: "b.c"})
		settle()
		f.requireNames(t, s, zone, "hh", "x-002")
		f.requireNames(t, s, zone, "b", "x-001")
		f.requireNames(t, s, tags, "a")
		f.requireNames(t, s, tags, "c", "x-000")
		f.update(t, "x-001", "two") // stays
		f.delete(t, "x-002")
		settle()
		f.requireNames(t, s, zone, "hh")
		f.requireNames(t, s, zone, "b", "x-001")
		require.ElementsMatch(t, []string{"b"}, s.ListIndexFuncValues(zone))
		require.ElementsMatch(t, []string{"b", "c"}, s.ListIndexFuncValues(tags))
		f.delete(t, "x-001")
		f.delete(t, "x-000")
		settle()
		require.Empty(t, s.ListIndexFuncValues(zone))
	}
}

func indexesRelist(open func() indexedStore) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		f.createMany(t, "x", 3)
		for i, value := range []string{"hh", "hh", "b"} {
			f.label(t, fmt.Sprintf("x-%03d", i), map[string]any{zone: value})
		}
		s := open()
		r := f.reflect(t, s)
		awaitList(t, r)
		requireIndexed(t, s)
		f.relist(t, r, func() {
			f.label(t, "x-000", map[string]any{zone: "m"})
			f.delete(t, "x-001")
			f.label(t, "x-002", map[string]any{zone: nil})
			f.create(t, "y")
			f.label(t, "y", map[string]any{tags: "a"})
		})
		f.world.requireEqual(t, s, f.namespace)
		requireIndexed(t, s)
		require.ElementsMatch(t, []string{"m"}, s.ListIndexFuncValues(zone))
		f.requireNames(t, s, zone, "m", "x-000")
		f.requireNames(t, s, tags, "a", "y")
	}
}

func indexesAdd(open func() indexedStore) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		s := open()
		f.create(t, "x")
		written := f.label(t, "x", map[string]any{"rack": "7"})
		reach(t, f.reflect(t, s), written)
		require.NoError(t, s.AddIndexers(cache.Indexers{"rack": byLabel("rack")}))
		f.requireNames(t, s, "rack", "7", "x")
		f.label(t, "x", map[string]any{"rack": "8"})
		f.create(t, "y")
		f.label(t, "y", map[string]any{"rack": "7"})
		f.world.requireEqual(t, s, f.namespace)
		requireIndexed(t, s)
		f.requireNames(t, s, "rack", "7", "y")
		require.Len(t, s.GetIndexers(), 3)
	}
}

func indexesUnknown(open func() indexedStore) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		s := open()
		reach(t, f.reflect(t, s), f.create(t, "x"))
		_, err := s.ByIndex("rack", "7")
		require.ErrorContains(t, err, "rack")
		_, err = s.IndexKeys("rack", "7")
		require.ErrorContains(t, err, "rack")
		_, err = s.Index("rack", s.List()[0])
		require.ErrorContains(t, err, "rack")
		require.Empty(t, s.ListIndexFuncValues("rack"))
		require.ErrorContains(t, s.AddIndexers(cache.Indexers{zone: byLabel(tags)}), zone)
		f.label(t, "x", map[string]any{zone: "hh", tags: "a"})
		f.world.requireEqual(t, s, f.namespace)
		f.requireNames(t, s, zone, "hh", "x")
	}
}

// indexesConcurrent: whoever asks for a value gets objects that have it, and of no
// object an older state than before. All read at every write, while it is delivered.
func indexesConcurrent(open func() indexedStore) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		const objects, rounds, readers = 4, 10, 4
		s := open()
		f.createMany(t, "x", objects)
		reach(t, f.reflect(t, s), f.create(t, "y"))
		writes, failures := make([]chan struct{}, readers), make(chan error, readers)
		for i := range writes {
			writes[i] = make(chan struct{}, rounds*objects)
			go func() { failures <- readIndexes(s, writes[i]) }()
		}
		for i := range rounds * objects {
			name := fmt.Sprintf("x-%03d", i%objects)
			f.label(t, name, map[string]any{zone: fmt.Sprint("z", i%3), tags: fmt.Sprintf("a%d.b%d", i%2, i%5)})
			if i%7 == 0 {
				f.delete(t, "y")
				f.create(t, "y")
			}
			for _, reader := range writes {
				reader <- struct{}{}
			}
		}
		require.NoError(t, s.AddIndexers(cache.Indexers{"kind": byLabel("kind")}))
		f.world.requireEqual(t, s, f.namespace)
		for _, reader := range writes {
			close(reader)
		}
		for range readers {
			require.NoError(t, <-failures)
		}
		requireIndexed(t, s)
	}
}

// readIndexes reads everything at each write, and reports what can't be.
func readIndexes(s indexed, writes <-chan struct{}) error {
	newest := map[string]string{}
	for range writes {
		for _, name := range []string{zone, tags} {
			for _, value := range s.ListIndexFuncValues(name) {
				objects, err := s.ByIndex(name, value)
				if err != nil {
					return err
				}
				if err := checkRead(name, value, objects, newest); err != nil {
					return err
				}
			}
		}
		if _, err := s.IndexKeys(zone, "z1"); err != nil {
			return err
		}
		if err := checkRead("", "", s.List(), newest); err != nil {
			return err
		}
	}
	return nil
}

// checkRead checks one read: all objects must have the value, and none may be older
// than in newest, where they are noted.
func checkRead(name, value string, objects []any, newest map[string]string) error {
	for _, obj := range objects {
		accessor, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		if words := strings.Split(accessor.GetLabels()[name], "."); name != "" && !slices.Contains(words, value) {
			return fmt.Errorf("%s is indexed under %s=%s and has %v", accessor.GetName(), name, value, words)
		}
		before, rv := newest[accessor.GetName()], accessor.GetResourceVersion()
		if len(before) > len(rv) || len(before) == len(rv) && before > rv {
			return fmt.Errorf("%s is read at %s after %s", accessor.GetName(), rv, before)
		}
		newest[accessor.GetName()] = rv
	}
	return nil
}

// storeVersion: the store knows how far it has come.
func storeVersion(open func() indexedStore) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		s := open()
		require.Empty(t, s.LastStoreSyncResourceVersion())
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
		s.Bookmark("1")
		require.Equal(t, "1", s.LastStoreSyncResourceVersion())
		var y *fleetv1.Device
		f.relist(t, r, func() { y = f.create(t, "y") })
		requireListed(y)
		f.world.requireEqual(t, s, f.namespace)
	}
}

func indexerTransaction(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	s := newIndexer()
	reach(t, f.reflect(t, s), y)
	other := newIndexer()
	require.NoError(t, other.Add(f.own(t, x)))
	f.update(t, "x", "two")
	z := f.create(t, "z")
	f.delete(t, "z")
	f.world.requireEqual(t, s, f.namespace)

	newest := func(name string) any {
		obj, ok, err := s.GetByKey(f.key(name))
		require.NoError(t, err)
		require.True(t, ok)
		return obj
	}
	require.NoError(t, other.Add(f.own(t, z)))
	err := other.(cache.TransactionStore).Transaction(
		cache.Transaction{Type: cache.TransactionTypeUpdate, Object: newest("x")},
		cache.Transaction{Type: cache.TransactionTypeAdd, Object: "this has no key"},
		cache.Transaction{Type: cache.TransactionTypeDelete, Object: cache.DeletedFinalStateUnknown{Key: f.key("z")}},
		cache.Transaction{Type: cache.TransactionTypeAdd, Object: newest("y")},
	)
	require.NotNil(t, err)
	require.Equal(t, []int{0, 2, 3}, err.SuccessfulIndices)
	require.Equal(t, 4, err.TotalTransactions)
	require.Len(t, err.Errors, 1)
	f.world.requireEqual(t, other, f.namespace)
	requireIndexed(t, other)
}

func indexerOfNamespace(t *testing.T, f *feed) {
	f.create(t, "x")
	s, r := cache.NewNamespaceKeyedIndexerAndReflector(f.source, f.via.example(), 0)
	runs(t, r.RunWithContext)
	f.create(t, "y")
	f.delete(t, "x")
	f.world.requireEqual(t, s, f.namespace)
	requireIndexed(t, s)
	objects, err := s.Index(cache.NamespaceIndex, &fleetv1.Device{ObjectMeta: device(f.namespace, "any").ObjectMeta})
	require.NoError(t, err)
	require.ElementsMatch(t, s.List(), objects)
}
