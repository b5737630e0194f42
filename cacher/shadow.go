// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// Shadowed is a cache behind another storage, which serves.
type Shadowed struct {
	Cache *Cacher
	// Declared is the configuration of the resource's registry, before options.
	Declared Config
	// Context is for requests to Cache. They fail if Cache can't answer from memory.
	Context context.Context
	// Metrics are those of Cache.
	Metrics *metrics.Resource
	// Report adds a difference to Status.Errors, and logs the summary and values at most once a
	// minute.
	Report func(summary, difference string, values ...any)
}

// InShadow makes a Decorator return, for each cache, the storage front, which open puts before it
// and which answers all requests. front needs a method Shadow() storage.Interface that returns the
// cache, for CacheOf. fraction is for Status.Shadow.
//
// The cache shares no serializations, estimates no sizes, does not add to the shipped cacher's
// metrics, starts at once and does not sleep.
func InShadow(fraction float64, open func(Shadowed) (front storage.Interface, stop func(), err error)) Option {
	return func(o *options) { o.shadow = inShadow{fraction, open} }
}

// inShadow holds the parameters of InShadow, zero if absent.
type inShadow struct {
	fraction float64
	open     func(Shadowed) (storage.Interface, func(), error)
}

func (s inShadow) apply(config *Config) {
	if s.open == nil {
		return
	}
	config.shadowFraction = s.fraction
	config.Lists = nil
	config.DisableSizeEstimation = true
	config.LazyStart = false
	config.IdleTimeout = 0
}

// inFrontOf returns the storage that serves: front, or c without InShadow.
func (s inShadow) inFrontOf(c *Cacher, declared Config) (front storage.Interface, stop func(), err error) {
	if s.open == nil {
		return c, func() {}, nil
	}
	ctx := WithClient(context.Background(), status.Client{User: shadowUser})
	return s.open(Shadowed{
		Cache: c, Declared: declared, Context: context.WithValue(ctx, cacheOnly{}, true), Metrics: c.metrics, Report: c.reportDifference,
	})
}

func (c *Cacher) reportDifference(summary, difference string, values ...any) {
	now := c.config.Clock.Now()
	c.errors.add(summary, difference, now)
	if suppressed, ok := c.errors.due("shadow", now); ok {
		klog.ErrorS(nil, summary, append([]any{"resource", c.config.GroupResource, "suppressed", suppressed}, values...)...)
	}
}

// errNotCached fails a cacheOnly request.
var errNotCached = errors.New("the cache can't answer from its memory")

// cacheOnly is the context key of requests that must not go to storage.
type cacheOnly struct{}

func isCacheOnly(ctx context.Context) bool { return ctx.Value(cacheOnly{}) != nil }

const shadowUser = "watch-cache-shadow"
