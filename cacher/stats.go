// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// errStatsUnknown is what a cache answers that sleeps and was never asked while
// it was awake. The server's count of objects then has a gap, not a zero, by
// which priority and fairness would take its lists for free.
var errStatsUnknown = errors.New("the watch cache sleeps and does not know how many objects there are")

// lastStats is what storage last told of its objects, for the time when the
// cache sleeps.
type lastStats = atomic.Pointer[storage.Stats]

// Stats implements storage.Interface. A server asks again and again, so that it
// does not wake the cache: while it sleeps the answer is what was last known.
func (c *Cacher) Stats(ctx context.Context) (storage.Stats, error) {
	sleeps := c.sleep.engine.Load() == nil && c.done.Err() == nil
	if sleeps && c.estimated() {
		if last := c.stats.Load(); last != nil {
			return *last, nil
		}
		return storage.Stats{}, errStatsUnknown
	}
	stats, err := c.config.Storage.Stats(ctx)
	if err == nil && c.config.IdleTimeout != 0 {
		c.stats.Store(&stats)
	}
	return stats, err
}

// rememberStats asks storage for what Stats is to answer while the cache
// sleeps. If it does not tell, the last answer stays.
func (c *Cacher) rememberStats() {
	ctx, cancel := context.WithTimeout(c.done, c.config.FreshnessTimeout)
	defer cancel()
	_, _ = c.Stats(ctx)
}

// estimated tells whether storage was told to estimate the sizes of objects,
// and so asks the cache for their keys. Otherwise it counts by itself.
func (c *Cacher) estimated() bool {
	if c.config.DisableSizeEstimation {
		return false
	}
	c.sleep.mu.Lock()
	defer c.sleep.mu.Unlock()
	return c.sleep.mu.estimates
}

// keys returns the keys that storage is to remember the sizes of: those of all
// objects, at least as new as the call, and none while the cache sleeps.
func (c *Cacher) keys(ctx context.Context) ([]string, error) {
	e := c.sleep.engine.Load()
	if e == nil {
		return nil, nil
	}
	return e.keys(ctx)
}

func (c *engine) keys(ctx context.Context) ([]string, error) {
	rv, err := c.currentVersion(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.freshness.wait(ctx, rv); err != nil {
		return nil, err
	}
	snapshot := c.state.Latest()
	keys := make([]string, 0, snapshot.Len())
	snapshot.Range(c.config.ResourcePrefix, "", func(e *watchcache.Element) bool {
		keys = append(keys, e.Key)
		return true
	})
	return keys, nil
}
