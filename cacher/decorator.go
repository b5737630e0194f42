// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/shadow"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/shared"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Decorator takes the place of genericregistry.StorageWithCacher: every
// storage it makes is a Cacher over a raw storage. Feature gates are read when
// it is called.
//
// Two requests that declare the same thing, as those of a server do that makes
// a store for each version it serves, get one cache over one raw storage. Values that
// can't be compared are different: a closure that captures something, and the codec of
// objects without a Go type. Two versions of a custom resource have a cache each.
//
// With Options.Shadow a storage is the shipped cacher, with a cache in its shadow.
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
	room           shadow.Room // of all shadows
}

func (d *decorator) decorate(r request) (storage.Interface, factory.DestroyFunc, error) {
	switch {
	case d.wrong != nil:
		return nil, nil, d.wrong
	case !d.options.includes(r.config.GroupResource):
		return d.raw(r)
	case d.options.shipped(r.config.GroupResource):
		return nil, nil, fmt.Errorf("the shipped cacher is chosen for %s (--%s, --%s), which only server.Install can do: "+
			"use genericregistry.StorageWithCacher in the place of cacher.Decorator", r.config.GroupResource, implementationFlag, shippedFlag)
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
	d.options.apply(&config)
	config.shadow = d.options.flags.Shadow
	if config.shadow > 0 {
		// The shipped cacher has the handlers' requests, the storage's size estimator and
		// its own metrics, and does not sleep.
		config.Lists, config.DisableSizeEstimation, config.LazyStart, config.IdleTimeout = nil, true, false, 0
	}
	c, err := New(config)
	if err != nil {
		destroyRaw()
		return nil, nil, err
	}
	reader, ok := raw.(capability.EncryptedReader)
	c.encrypts = r.config.Transformer != nil && !(ok && reader.ReadsEncrypted())
	destroy := func() {
		c.Stop()
		destroyRaw()
	}
	if config.shadow > 0 {
		return d.openShadow(r, c, destroy)
	}
	return c, destroy, nil
}

// CacheDelegator is the Cacher. Decorators that were written by hand for the cacher of
// k8s.io/apiserver move over by changing an import.
type CacheDelegator = Cacher

// NewCacherFromConfig is New.
func NewCacherFromConfig(config Config) (*Cacher, error) { return New(config) }

// NewCacheDelegator returns the cache, which delegates to storage by itself. Stop may be
// called on both.
func NewCacheDelegator(cache *Cacher, _ storage.Interface) *CacheDelegator { return cache }

// CacheOf returns the cache behind a storage that a Decorator has made: the storage
// itself, or the cache in its shadow (Options.Shadow). It returns nil if there is none.
func CacheOf(s storage.Interface) *Cacher {
	if shadowed, ok := s.(*shadow.Storage); ok {
		s = shadowed.Shadow()
	}
	c, _ := s.(*Cacher)
	return c
}

// errNotCached is returned by a request that storage must not answer, and the cache can't.
var errNotCached = errors.New("the cache can't answer from its memory")

// cacheOnly is the key of the contexts of such requests, and the user that Status shows
// for their watches.
type cacheOnly struct{}

const shadowUser = "watch-cache-shadow"

func isCacheOnly(ctx context.Context) bool { return ctx.Value(cacheOnly{}) != nil }

// openShadow puts the shipped cacher over the storage of c, and c in its shadow. destroy
// ends c and the storage.
func (d *decorator) openShadow(r request, c *Cacher, destroy factory.DestroyFunc) (storage.Interface, factory.DestroyFunc, error) {
	of := c.config
	var serving *shipped.Cacher
	err := errors.New("its storage needs a Codec")
	if r.config.Codec != nil {
		serving, err = shipped.NewCacherFromConfig(shipped.Config{
			Storage: of.Storage, Versioner: of.Versioner, GroupResource: of.GroupResource,
			EventsHistoryWindow: r.config.EventsHistoryWindow, ResourcePrefix: r.prefix,
			KeyFunc: r.keyOf, GetAttrsFunc: r.attrs, IndexerFuncs: r.triggers, Indexers: r.indexers,
			NewFunc: r.newObject, NewListFunc: r.newList, Codec: r.config.Codec,
		})
	}
	if err != nil {
		destroy()
		return nil, nil, fmt.Errorf("--%s: the shipped cacher of %s: %w", shadowFlag, of.GroupResource, err)
	}
	delegator := shipped.NewCacheDelegator(serving, of.Storage)
	ctx := context.WithValue(WithClient(context.Background(), status.Client{User: shadowUser}), cacheOnly{}, true)
	s := shadow.New(shadow.Config{
		Serving: delegator, Shadow: c, Share: of.shadow, NewFunc: of.NewFunc, NewListFunc: of.NewListFunc,
		Context: ctx, Room: &d.room, Metrics: c.metrics,
		Report: func(found shadow.Difference) {
			const message = "The watch cache in the shadow differs from the shipped cacher, whose answer the client got"
			now := of.Clock.Now()
			c.errors.add(message, found.Kind.String()+": "+found.What, now)
			if suppressed, ok := c.errors.due("shadow", now); ok {
				values := []any{"resource", of.GroupResource, "kind", found.Kind.String(), "difference", found.What,
					"shippedVersion", found.Serving, "shadowVersion", found.Shadow,
					"remedy", "do not switch over, and report it, please", "suppressed", suppressed}
				if found.Stack != "" {
					values = append(values, "stack", found.Stack)
				}
				klog.ErrorS(nil, message, values...)
			}
		},
	})
	return s, func() {
		s.Stop()
		delegator.Stop()
		serving.Stop()
		destroy()
	}, nil
}
