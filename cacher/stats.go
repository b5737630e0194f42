// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"
)

// lastStats is what storage has last told of its objects: the answer while the
// cache sleeps.
type lastStats = atomic.Pointer[storage.Stats]

// Stats implements storage.Interface. A server calls it again and again, so it
// does not wake the cache: while the cache sleeps, the answer is what was last
// known.
func (c *Cacher) Stats(ctx context.Context) (storage.Stats, error) {
	sleeps := c.lifecycle.current() == nil && !c.stopped()
	if sleeps && c.estimates.Load() {
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

// rememberStats asks storage for what Stats is to answer while the cache sleeps.
// If storage fails, the last answer stays.
func (c *Cacher) rememberStats(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.FreshnessTimeout)
	defer cancel()
	_, _ = c.Stats(ctx)
}
