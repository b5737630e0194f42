// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Cacher is a watch cache of one resource: a storage.Interface that serves
// reads from memory and passes writes on. All methods are safe for concurrent
// use.
type Cacher struct {
	wrapped
	config    Config
	metrics   *metrics.Resource
	errors    errorLog
	lifecycle *lifecycle
	stats     atomic.Pointer[storage.Stats] // storage's last ones, for while the cache sleeps
	// estimates: storage estimates the sizes of objects.
	estimates atomic.Bool
	// encrypts: values may become unreadable in storage while the cache has them.
	encrypts bool
}

// wrapped is the storage under the cache. It serves the methods of storage.Interface that a
// Cacher does not have itself.
type wrapped = storage.Interface

var _ storage.Interface = (*Cacher)(nil)

// New makes a cache and starts it, unless Config.LazyStart leaves that to its first
// request. The cache fills in the background. The error names all invalid fields of the
// configuration.
func New(config Config) (*Cacher, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	c := &Cacher{wrapped: config.Storage, config: config}
	c.lifecycle = newLifecycle(c)
	handles := config.Metrics.For
	if config.LazyStart {
		handles = config.Metrics.ForAsleep
	}
	c.metrics = handles(config.GroupResource.Group, config.GroupResource.Resource)
	if config.shadow == 0 {
		c.metrics.Mirror() // or else the shipped cacher counts for itself
	}
	if config.LazyStart {
		return c, nil
	}
	if err := c.estimateSizes(); err != nil {
		c.lifecycle.stop()
		c.metrics.Forget()
		return nil, err
	}
	c.lifecycle.acquire(c.lifecycle.ctx)
	c.lifecycle.release()
	return c, nil
}

// startEngine makes an engine and starts it. The request that has woken the cache,
// and those after it, may wait for the state, for up to FreshnessTimeout.
func (c *Cacher) startEngine(ctx context.Context) *engine {
	e := assemble(c.config, c.metrics, &c.errors)
	if ctx != c.lifecycle.ctx {
		e.warmUntil = c.config.Clock.Now().Add(c.config.FreshnessTimeout)
		c.metrics.WokenUp()
		e.log.V(lifecycleLevel).Info("A request wakes the watch cache", "user", inLine(clientOf(ctx).User, clientText))
		if err := c.estimateSizes(); err != nil {
			e.warn("sizes", "The sizes of objects won't be estimated. The watch cache reports their number only", err,
				"do not enable a size estimator on the storage below the cache, or set DisableSizeEstimation")
		}
	}
	e.start()
	return e
}

// Config returns the configuration with defaults filled in. The fields share their values
// with the running cache: do not change them.
func (c *Cacher) Config() Config { return c.config }

// Ready reports whether the cache can serve: it has its state, or it sleeps and a
// request will wake it.
func (c *Cacher) Ready() bool {
	if e := c.lifecycle.current(); e != nil {
		return e.condition.load().served()
	}
	return !c.stopped()
}

// Wait waits until the cache has its state, and wakes it if it sleeps. Wait
// fails when the cache is stopped or the context is done.
func (c *Cacher) Wait(ctx context.Context) error {
	e := c.lifecycle.acquire(ctx)
	if e == nil {
		return ctx.Err()
	}
	defer c.lifecycle.release()
	_, err := e.condition.await(ctx, (*condition).served)
	if ctx.Err() != nil && err != nil {
		return ctx.Err()
	}
	return err
}

// Done is closed when the cache is stopped.
func (c *Cacher) Done() <-chan struct{} { return c.lifecycle.ctx.Done() }

// stopped reports whether Stop was called.
func (c *Cacher) stopped() bool { return c.lifecycle.ctx.Err() != nil }

// Stop ends the cache: reads fail fast, watches end, and when it returns everything that
// the cache has started has ended. It may be called more than once, and by many at a
// time. The wrapped storage stays as it is.
func (c *Cacher) Stop() {
	first := c.lifecycle.stop()
	c.metrics.Forget()
	if first {
		loggerOf(c.config.GroupResource).V(lifecycleLevel).Info("The watch cache was stopped")
	}
}
