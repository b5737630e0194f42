// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// Cacher is a watch cache of one resource: a storage.Interface that serves
// reads from memory and passes writes on. All methods are safe for concurrent
// use.
type Cacher struct {
	running
	config  Config
	metrics *metrics.Resource
	errors  errorLog
	logStop sync.Once
}

// running is implemented by engine, a running cache, and by sleeper, which starts and ends
// engines.
type running interface {
	storage.Interface
	// Ready reports whether the cache can serve: it has its state, or it sleeps and a
	// request will wake it.
	Ready() bool
	// Wait waits until the cache has its state, and wakes it if it sleeps. Wait
	// fails when the cache is stopped or the context is done.
	Wait(ctx context.Context) error
	// Done is closed when the cache is stopped.
	Done() <-chan struct{}
	// Bookmark sends each open watch that requested bookmarks one at the storage's
	// current version, and returns when the clients have taken it, or the context is
	// done. A server calls Bookmark before it ends its watches, so that their clients
	// resume elsewhere from a new version. If storage does not return its version within
	// half of the context's time, the bookmarks are at the version that the cache has
	// reached. Watches that catch up get none.
	Bookmark(ctx context.Context) error

	status(q status.Query) Status
	stop()
}

// wrapped is the storage under the cache. It serves the methods of storage.Interface
// that a cache does not have itself.
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
	c := &Cacher{config: config}
	handles := config.Metrics.For
	if config.LazyStart {
		handles = config.Metrics.ForAsleep
	}
	c.metrics = handles(config.GroupResource.Group, config.GroupResource.Resource)
	if config.shadowFraction == 0 {
		c.metrics.Mirror() // otherwise the shipped cacher counts for itself
	}
	if err := c.open(); err != nil {
		c.running.stop()
		c.metrics.Forget()
		return nil, err
	}
	return c, nil
}

// open makes the running part, and starts it unless the start is lazy.
func (c *Cacher) open() error {
	if c.config.LazyStart || c.config.IdleTimeout > 0 {
		s := newSleeper(&c.config, c.metrics, &c.errors)
		c.running = s
		if c.config.LazyStart {
			return nil
		}
		return s.start()
	}
	e := assemble(c.config, c.metrics, &c.errors)
	c.running = e
	if !c.config.DisableSizeEstimation {
		if err := estimateSizes(&c.config, e.keys); err != nil {
			return err
		}
	}
	e.start()
	return nil
}

// Config returns the configuration with defaults filled in. The fields share their values
// with the running cache: do not change them.
func (c *Cacher) Config() Config { return c.config }

// Stop ends the cache: reads fail fast, watches end, and when it returns everything that
// the cache has started has ended. It may be called more than once, and by many at a
// time. The wrapped storage stays as it is.
func (c *Cacher) Stop() {
	c.running.stop()
	c.metrics.Forget()
	c.logStop.Do(func() { loggerOf(c.config.GroupResource).V(lifecycleLevel).Info("The watch cache stopped") })
}
