// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
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

	"github.com/kube-watchcache/watchcache/internal/shared"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Decorator takes the place of genericregistry.StorageWithCacher: every
// storage it makes is a Cacher over a raw storage. Feature gates are read when
// it is called.
//
// Two requests that declare the same thing get one cache over one raw storage, e.g. those
// of a server with a store for each version that it serves and one codec. A codec or a
// function equals only itself: stores with codecs of their own, as those of a storage
// factory or of two versions of a custom resource, get a cache each.
//
// The returned destroy function stops the cache and then the storage under it,
// unless others use them; it may be called more than once, as a registry does
// for subresources.
func Decorator(opts ...Option) generic.StorageDecorator {
	o := optionsOf(opts)
	d := &decorator{
		options:        o,
		wrong:          errors.Join(o.problems...),
		sizeEstimation: utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate),
	}
	return asStorageDecorator(d.decorate)
}

// asStorageDecorator and openRaw have, beside RawStorageFunc, the signatures that
// k8s.io/apiserver changes from one minor version to another: docs/adopting.md says how
// the next one is added.
func asStorageDecorator(decorate func(request) (storage.Interface, factory.DestroyFunc, error)) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource, resourcePrefix string,
		keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return decorate(request{
			config: config, prefix: resourcePrefix, keyOf: keyFunc, newObject: newFunc, newList: newListFunc,
			attrs: attrs, triggers: triggers, indexers: indexers,
		})
	}
}

func openRaw(open RawStorageFunc, r request) (storage.Interface, factory.DestroyFunc, error) {
	return open(r.config, r.newObject, r.newList, r.prefix)
}

// decorator makes the storages of one Decorator.
type decorator struct {
	options        *options
	wrong          error // with the options
	sizeEstimation bool
	caches         shared.Map[identity, storage.Interface]
}

func (d *decorator) decorate(r request) (storage.Interface, factory.DestroyFunc, error) {
	switch {
	case d.wrong != nil:
		return nil, nil, d.wrong
	case !d.options.includes(r.config.GroupResource):
		return d.raw(r)
	}
	if err := d.options.otherCache(r.config.GroupResource); err != nil {
		return nil, nil, err
	}
	return d.caches.Use(r.identity(), func() (storage.Interface, func(), error) { return d.open(r) })
}

func (d *decorator) raw(r request) (storage.Interface, factory.DestroyFunc, error) {
	open := d.options.rawStorage
	if open == nil {
		open = generic.NewRawStorage // of k8s.io/apiserver, over etcd
	}
	raw, destroy, err := openRaw(open, r)
	if err != nil {
		return nil, nil, fmt.Errorf("the storage of %s: %w", r.config.GroupResource, err)
	}
	return raw, sync.OnceFunc(destroy), nil
}

// open returns a cache, and a function that closes it and the storage under it.
func (d *decorator) open(r request) (storage.Interface, func(), error) {
	raw, destroyRaw, err := d.raw(r)
	if err != nil {
		return nil, nil, err
	}
	config := Config{
		Storage: raw, Versioner: raw.Versioner(), GroupResource: r.config.GroupResource,
		EventsHistoryWindow: r.config.EventsHistoryWindow, ResourcePrefix: r.prefix,
		KeyFunc: r.keyOf, GetAttrsFunc: r.attrs, IndexerFuncs: r.triggers, Indexers: r.indexers,
		NewFunc: r.newObject, NewListFunc: r.newList, Codec: r.config.Codec,
		DisableSizeEstimation: !d.sizeEstimation,
	}
	reader, ok := raw.(capability.EncryptedReader)
	config.encrypts = r.config.Transformer != nil && !(ok && reader.ReadsEncrypted())
	declared := config
	d.options.apply(&config)
	d.options.shadow.apply(&config)
	c, err := New(config)
	if err != nil {
		destroyRaw()
		return nil, nil, err
	}
	front, stop, err := d.options.shadow.inFrontOf(c, declared)
	if err != nil {
		c.Stop()
		destroyRaw()
		return nil, nil, err
	}
	return front, func() {
		stop()
		c.Stop()
		destroyRaw()
	}, nil
}

// CacheDelegator is the Cacher. Decorators that were written by hand for the cacher of
// k8s.io/apiserver move over by changing an import.
type CacheDelegator = Cacher

// NewCacherFromConfig is New.
func NewCacherFromConfig(config Config) (*Cacher, error) { return New(config) }

// NewCacheDelegator returns the cache, which delegates to storage by itself. Stop may be
// called on both.
func NewCacheDelegator(cache *Cacher, _ storage.Interface) *CacheDelegator { return cache }

// CacheOf returns the cache behind a storage made by a Decorator: the storage itself, or
// the cache in its shadow (InShadow). It returns nil if there is none.
func CacheOf(s storage.Interface) *Cacher {
	if front, ok := s.(interface{ Shadow() storage.Interface }); ok {
		s = front.Shadow()
	}
	c, _ := s.(*Cacher)
	return c
}
