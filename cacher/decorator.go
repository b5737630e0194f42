// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/shared"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Decorator replaces genericregistry.StorageWithCacher: its storages are Cachers over raw storages.
// It reads feature gates when called.
//
// Requests that declare the same resource share one cache, e.g. the stores that a server with one
// codec opens per served version. Codecs and functions must be identical, so stores with their own
// codecs, e.g. of a storage factory or of two versions of a custom resource, get a cache each.
//
// The last call of the destroy functions stops the cache and the storage under it. Each is
// idempotent, since registries call it for subresources.
func Decorator(opts ...Option) generic.StorageDecorator {
	o := optionsOf(opts)
	d := &decorator{
		options:        o,
		wrong:          errors.Join(o.problems...),
		sizeEstimation: utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate),
	}
	return decoration.Decorator(d.decorate)
}

type decorator struct {
	options        *options
	wrong          error // in the options
	sizeEstimation bool
	caches         shared.Map[identity, storage.Interface]
}

func (d *decorator) decorate(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	switch {
	case d.wrong != nil:
		return nil, nil, d.wrong
	case !d.options.includes(r.Config.GroupResource):
		return d.raw(r)
	}
	if err := d.options.otherCache(r.Config.GroupResource); err != nil {
		return nil, nil, err
	}
	return d.caches.Use(identityOf(r), func() (storage.Interface, func(), error) { return d.open(r) })
}

func (d *decorator) raw(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	open := d.options.rawStorage
	if open == nil {
		open = generic.NewRawStorage // over etcd
	}
	raw, destroy, err := decoration.Open(decoration.Raw(open), r)
	if err != nil {
		return nil, nil, fmt.Errorf("the storage of %s: %w", r.Config.GroupResource, err)
	}
	return raw, sync.OnceFunc(destroy), nil
}

// open returns a cache, and a function that stops it and the storage under it.
func (d *decorator) open(r decoration.Request) (storage.Interface, func(), error) {
	raw, destroyRaw, err := d.raw(r)
	if err != nil {
		return nil, nil, err
	}
	config := Config{
		Storage: raw, Versioner: raw.Versioner(), GroupResource: r.Config.GroupResource,
		EventsHistoryWindow: r.Config.EventsHistoryWindow, ResourcePrefix: r.ResourcePrefix,
		KeyFunc: r.KeyFunc, GetAttrsFunc: r.GetAttrsFunc, IndexerFuncs: r.IndexerFuncs, Indexers: r.Indexers,
		NewFunc: r.NewFunc, NewListFunc: r.NewListFunc, Codec: r.Config.Codec,
		DisableSizeEstimation: !d.sizeEstimation,
	}
	reader, ok := raw.(capability.EncryptedReader)
	config.encrypts = r.Config.Transformer != nil && !(ok && reader.ReadsEncrypted())
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

// CacheDelegator is the Cacher: decorators for k8s.io/apiserver's cacher only need another import.
type CacheDelegator = Cacher

// NewCacherFromConfig is New.
func NewCacherFromConfig(config Config) (*Cacher, error) { return New(config) }

// NewCacheDelegator returns the cache, which delegates to storage itself. You may stop both.
func NewCacheDelegator(cache *Cacher, _ storage.Interface) *CacheDelegator { return cache }

// CacheOf returns the cache of a storage made by a Decorator, even InShadow, or nil.
func CacheOf(s storage.Interface) *Cacher {
	if front, ok := s.(interface{ Shadow() storage.Interface }); ok {
		s = front.Shadow()
	}
	c, _ := s.(*Cacher)
	return c
}
