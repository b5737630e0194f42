// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Cacher is a watch cache of one resource: a storage.Interface that serves
// reads from memory and passes writes on. All methods are safe for concurrent
// use.
type Cacher struct {
	config    Config
	metrics   *metrics.Resource
	lastError atomic.Pointer[LastError]
	sleep     sleep
	stats     lastStats
	done      context.Context
	finish    context.CancelFunc
	tasks     tasks // what outlives an engine
}

var _ storage.Interface = (*Cacher)(nil)

// New makes a cache, and starts it unless Config.LazyStart says that its first
// request is to do so. Every field of the configuration that does not fit is
// named in the error, and then nothing was started. The cache fills in the
// background; Wait waits for it.
func New(config Config) (*Cacher, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	c := &Cacher{config: config}
	c.done, c.finish = context.WithCancel(context.Background())
	c.sleep.users.Store(asleep)
	if config.LazyStart {
		c.metrics = config.Metrics.ForAsleep(config.GroupResource.Group, config.GroupResource.Resource)
		return c, nil
	}
	c.metrics = config.Metrics.For(config.GroupResource.Group, config.GroupResource.Resource)
	if err := c.estimateSizes(); err != nil {
		c.finish()
		c.metrics.Forget()
		return nil, err
	}
	c.wake(false)
	c.leave()
	return c, nil
}

// estimateSizes makes storage estimate the sizes of objects. It is done once,
// when the cache is first awake: it costs storage a goroutine.
func (c *Cacher) estimateSizes() error {
	if c.config.DisableSizeEstimation {
		return nil
	}
	if err := c.config.Storage.EnableResourceSizeEstimation(c.keys); err != nil {
		return fmt.Errorf("cacher.Config.Storage is %T: its size estimation can't be enabled: %w", c.config.Storage, err)
	}
	return nil
}

// Config returns the configuration, with defaults filled in: what those who read
// the cache in the same process need to know of it. What it points to is the
// cache's own.
func (c *Cacher) Config() Config { return c.config }

// Ready tells whether the cache can serve: it has its state, or it sleeps and a
// request will wake it.
func (c *Cacher) Ready() bool {
	if e := c.sleep.engine.Load(); e != nil {
		return e.readiness.ready()
	}
	return c.done.Err() == nil
}

// Wait waits until the cache has its state, and wakes it if it sleeps. It fails
// when the cache is stopped or the context is done.
func (c *Cacher) Wait(ctx context.Context) error {
	e := c.enter()
	defer c.leave()
	return e.readiness.wait(ctx, nil)
}

// Done is closed when the cache is stopped.
func (c *Cacher) Done() <-chan struct{} { return c.done.Done() }

// Stop ends the cache: reads fail fast, watches end, and when it returns
// everything that the cache has started has ended. It may be called more than
// once, and by many at a time. The wrapped storage is left as it is.
func (c *Cacher) Stop() {
	c.finish()
	c.sleep.close()
	c.tasks.close()
	c.metrics.Forget()
}
