// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
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
