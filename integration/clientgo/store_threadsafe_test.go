// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
)

// keyed makes of a cache.ThreadSafeStore, which is told keys, what a reflector can
// fill, and what can be compared with etcd.
type keyed struct{ cache.ThreadSafeStore }

var _ indexedStore = keyed{}

func newThreadSafeStore() indexedStore {
	return keyed{cache.NewThreadSafeStore(labelIndexers(), cache.Indices{})}
}

// Add implements cache.Store.
func (k keyed) Add(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err == nil {
		k.ThreadSafeStore.Add(key, obj)
	}
	return err
}

// Update implements cache.Store.
func (k keyed) Update(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err == nil {
		k.ThreadSafeStore.Update(key, obj)
	}
	return err
}

// Delete implements cache.Store.
func (k keyed) Delete(obj any) error {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err == nil {
		k.DeleteWithObject(key, obj)
	}
	return err
}

// Get implements cache.Store.
func (k keyed) Get(obj any) (any, bool, error) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return nil, false, err
	}
	return k.GetByKey(key)
}

// GetByKey implements cache.Store.
func (k keyed) GetByKey(key string) (any, bool, error) {
	obj, ok := k.ThreadSafeStore.Get(key)
	return obj, ok, nil
}

// Replace implements cache.Store.
func (k keyed) Replace(objects []any, resourceVersion string) error {
	byKey := make(map[string]any, len(objects))
	for _, obj := range objects {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return err
		}
		byKey[key] = obj
	}
	k.ThreadSafeStore.Replace(byKey, resourceVersion)
	return nil
}

func TestThreadSafeStore(t *testing.T) {
	promises(t, []clause{
		{"the indexes follow updates and deletions", indexesFollow(newThreadSafeStore)},
		{"the indexes are those of the new list after a relist", indexesRelist(newThreadSafeStore)},
		{"AddIndexers indexes what is there, and what comes", indexesAdd(newThreadSafeStore)},
		{"an unknown index is an error, and so is one that there is already", indexesUnknown(newThreadSafeStore)},
		{"readers see whole states while it is fed", indexesConcurrent(newThreadSafeStore)},
		{"it tells the resourceVersion of the last delivery, deletions too", storeVersion(newThreadSafeStore)},
		{"a transaction is seen as a whole", threadSafeTransaction},
		{"Delete by key leaves the resourceVersion where it was", threadSafeDelete},
	})
}

// threadSafeTransaction moves a store from one state of etcd to the next.
func threadSafeTransaction(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	fed := newThreadSafeStore()
	f.reflect(t, fed)
	f.world.requireEqual(t, fed, f.namespace)
	other := newThreadSafeStore()
	before := map[string]any{}
	for _, key := range fed.ListKeys() {
		before[key], _, _ = fed.GetByKey(key)
	}
	other.(keyed).ThreadSafeStore.Replace(maps.Clone(before), "1")
	f.world.requireEqual(t, other, f.namespace)

	f.label(t, "x-000", map[string]any{zone: "hh"})
	f.delete(t, "x-001")
	late := f.create(t, "late")
	f.world.requireEqual(t, fed, f.namespace)
	var transactions []cache.ThreadSafeStoreTransaction
	add := func(kind cache.TransactionType, key string, obj any) {
		transactions = append(transactions, cache.ThreadSafeStoreTransaction{Key: key, Transaction: cache.Transaction{Type: kind, Object: obj}})
	}
	for key, obj := range before {
		if now, ok, _ := fed.GetByKey(key); ok {
			add(cache.TransactionTypeUpdate, key, now)
		} else {
			add(cache.TransactionTypeDelete, key, obj)
		}
	}
	created, _, _ := fed.GetByKey(f.key("late"))
	add(cache.TransactionTypeAdd, f.key("late"), created)
	other.(keyed).ThreadSafeStore.(cache.ThreadSafeStoreWithTransaction).Transaction(transactions...)
	f.world.requireEqual(t, other, f.namespace)
	requireIndexed(t, other)
	require.Equal(t, late.ResourceVersion, other.LastStoreSyncResourceVersion(), "that of the last one")
}

func threadSafeDelete(t *testing.T, f *feed) {
	x := f.create(t, "x")
	s := newThreadSafeStore()
	reach(t, f.reflect(t, s), f.label(t, "x", map[string]any{zone: "hh"}))
	f.delete(t, "x")
	f.world.requireEqual(t, s, f.namespace)
	at := s.LastStoreSyncResourceVersion()
	require.Equal(t, f.deleted(t, x), at)

	other := newThreadSafeStore()
	require.NoError(t, other.Add(f.own(t, x)))
	other.(keyed).ThreadSafeStore.Delete(f.key("x"))
	require.Equal(t, x.ResourceVersion, other.LastStoreSyncResourceVersion())
	f.world.requireEqual(t, other, f.namespace)
	requireIndexed(t, other)
}
