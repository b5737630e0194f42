// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package decoration

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Raw is the type of generic.NewRawStorage.
type Raw = func(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, reverseKeyFunc storage.ReverseKeyFunc,
	resourcePrefix string) (storage.Interface, factory.DestroyFunc, error)

// Open calls a function of the type of generic.NewRawStorage.
func Open(open Raw, r Request) (storage.Interface, factory.DestroyFunc, error) {
	return open(r.Config, r.NewFunc, r.NewListFunc, r.ReverseKeyFunc, r.ResourcePrefix)
}

// AsRaw returns a function of the type of generic.NewRawStorage that calls open.
func AsRaw(open Func) Raw {
	return func(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, reverseKeyFunc storage.ReverseKeyFunc,
		resourcePrefix string) (storage.Interface, factory.DestroyFunc, error) {
		return open(Request{Config: config, NewFunc: newFunc, NewListFunc: newListFunc, ReverseKeyFunc: reverseKeyFunc, ResourcePrefix: resourcePrefix})
	}
}

// Decorator returns a decorator that calls decorate.
func Decorator(decorate Func) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc generic.CacheKeyFunc, reverseKeyFunc storage.ReverseKeyFunc,
		newFunc, newListFunc func() runtime.Object, getAttrsFunc storage.AttrFunc, indexerFuncs storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return decorate(Request{
			Config: config, ResourcePrefix: resourcePrefix, KeyFunc: keyFunc, ReverseKeyFunc: reverseKeyFunc, NewFunc: newFunc, NewListFunc: newListFunc,
			GetAttrsFunc: getAttrsFunc, IndexerFuncs: indexerFuncs, Indexers: indexers,
		})
	}
}

// Call calls a decorator.
func Call(decorator generic.StorageDecorator, r Request) (storage.Interface, factory.DestroyFunc, error) {
	return decorator(r.Config, r.ResourcePrefix, r.KeyFunc, r.ReverseKeyFunc, r.NewFunc, r.NewListFunc, r.GetAttrsFunc, r.IndexerFuncs, r.Indexers)
}
