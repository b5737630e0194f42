// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/shadow"
)

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

// shadowConfig changes the configuration of a cache that runs in the shadow of the shipped
// cacher: that one has the handlers' requests, the storage's size estimator and its own
// metrics, and does not sleep.
func shadowConfig(config *Config, share float64) {
	config.shadow = share
	config.Lists, config.DisableSizeEstimation = nil, true
	config.LazyStart, config.IdleTimeout = false, 0
}

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
	differences := limiter[struct{}]{atOnce: 1}
	began := time.Now()
	ctx := context.WithValue(WithClient(context.Background(), Client{User: shadowUser}), cacheOnly{}, true)
	s := shadow.New(shadow.Config{
		Serving: delegator, Shadow: c, Share: of.shadow, NewFunc: of.NewFunc, NewListFunc: of.NewListFunc,
		Context: ctx, Room: &d.room, Metrics: c.metrics,
		Report: func(found shadow.Difference) {
			const message = "The watch cache in the shadow differs from the shipped cacher, whose answer the client got"
			c.errors.add(message, found.Kind.String()+": "+found.What, of.Clock.Now())
			if suppressed, ok := differences.due(struct{}{}, time.Since(began)); ok {
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
