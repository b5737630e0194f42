// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Cacher is a watch cache of one resource, i.e. a storage.Interface that serves reads from memory
// and forwards writes. It is safe for concurrent use.
type Cacher struct {
	running
	config  Config
	metrics *metrics.Resource
	errors  errorLog
	logStop sync.Once
}

// running is an engine or a sleeper, which starts and stops engines.
type running interface {
	storage.Interface
	// Ready reports whether the cache has its state, or sleeps.
	Ready() bool
	// Wait wakes the cache and waits for its state. It fails when the cache stops or the context is
	// done.
	Wait(ctx context.Context) error
	// Done returns a channel closed when the cache stops.
	Done() <-chan struct{}
	// Bookmark sends a bookmark at storage's current version to each open watch that requested
	// bookmarks, and waits until the clients receive it or the context is done. Servers call it
	// before they end their watches, so that clients resume elsewhere from a recent version. If
	// storage does not return its version within half of the context's time, the bookmarks have the
	// cache's. Parked and starting watches get none.
	Bookmark(ctx context.Context) error

	status(q status.Query) Status
	stop()
}

// wrapped is the storage under the cache, embedded for the methods that the cache does not
// implement.
type wrapped = storage.Interface

var _ storage.Interface = (*Cacher)(nil)

// awaitState is the timeout for the state of a storage in the process.
const awaitState = 10 * time.Second

// New makes a cache and, unless Config.LazyStart is set, starts it. It fills in the background, or
// before New returns if Storage is a capability.InProcess. The error names all invalid fields.
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
		c.metrics.Mirror() // otherwise the shipped cacher counts
	}
	if err := c.open(); err != nil {
		c.running.stop()
		c.metrics.Forget()
		return nil, err
	}
	if s, ok := config.Storage.(capability.InProcess); ok && s.InProcess() && !config.LazyStart {
		ctx, cancel := context.WithTimeout(context.Background(), awaitState)
		defer cancel()
		_ = c.Wait(ctx) // a cache without its state says why itself, as over another storage
	}
	return c, nil
}

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

// Config returns the configuration including defaults, which you must not modify.
func (c *Cacher) Config() Config { return c.config }

// Stop ends reads and watches, and awaits the cache's goroutines. It is idempotent, safe for
// concurrent use, and leaves the wrapped storage running.
func (c *Cacher) Stop() {
	c.running.stop()
	c.metrics.Forget()
	c.logStop.Do(func() { loggerOf(c.config.GroupResource).V(lifecycleLevel).Info("The watch cache stopped") })
}
