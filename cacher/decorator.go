// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// Decorator takes the place of genericregistry.StorageWithCacher: every
// storage it makes is a Cacher over a raw storage. Feature gates are read when
// it is called.
//
// The returned destroy function stops the cache and then the storage under it;
// it may be called more than once, as a registry does for subresources.
func Decorator(opts ...Option) generic.StorageDecorator {
	o := options{rawStorage: generic.NewRawStorage}
	for _, option := range opts {
		option(&o)
	}
	sizeEstimation := utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate)

	return func(
		config *storagebackend.ConfigForResource, resourcePrefix string,
		keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		raw, destroyRaw, err := o.rawStorage(config, newFunc, newListFunc, resourcePrefix)
		if err != nil {
			return nil, nil, fmt.Errorf("the storage of %s: %w", config.GroupResource, err)
		}
		c := Config{
			Storage: raw, Versioner: raw.Versioner(), GroupResource: config.GroupResource,
			EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: resourcePrefix,
			KeyFunc: keyFunc, GetAttrsFunc: attrs, IndexerFuncs: triggers, Indexers: indexers,
			NewFunc: newFunc, NewListFunc: newListFunc, Codec: config.Codec,
			DisableSizeEstimation: !sizeEstimation,
		}
		for _, set := range o.config {
			set(&c)
		}
		cacher, err := New(c)
		if err != nil {
			destroyRaw()
			return nil, nil, err
		}
		return cacher, sync.OnceFunc(func() {
			cacher.Stop()
			destroyRaw()
		}), nil
	}
}
