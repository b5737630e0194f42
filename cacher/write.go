// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Writes are the wrapped storage's. Updates pass the cached object on as a suggestion of
// the current state, which saves storage a read. Storage does not rely on it: on a
// conflict, a failed precondition or an error of the caller's function, it reads the live
// object and tries again. Deletions pass nothing on: storage must refuse to delete an
// object that it can't decrypt or decode any more, and so must a storage that encrypts
// refuse to update one.

// GuaranteedUpdate implements storage.Interface.
func (c *Cacher) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	return c.config.Storage.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, c.suggestion(key, suggestion))
}

// suggestion returns a copy of the cached object, since storage writes to it while it
// serializes it, or the caller's suggestion if the cache has none.
func (c *Cacher) suggestion(key string, callers runtime.Object) runtime.Object {
	e := c.lifecycle.current()
	if e == nil || !e.condition.load().served() || c.encrypts {
		return callers
	}
	if element, _ := e.state.Get(key); element != nil {
		return element.Object.DeepCopyObject()
	}
	return callers
}

// Versioner implements storage.Interface.
func (c *Cacher) Versioner() storage.Versioner { return c.config.Versioner }

// ReadinessCheck implements storage.Interface. While the cache can't serve, the error
// wraps storage.ErrStorageNotReady. A sleeping cache can serve: a request will wake it.
func (c *Cacher) ReadinessCheck() error {
	if c.Ready() {
		return nil
	}
	if e := c.lifecycle.current(); e != nil {
		if why := e.condition.load().why(); why != nil {
			return fmt.Errorf("%w: %s", storage.ErrStorageNotReady, publicText(why))
		}
	}
	return storage.ErrStorageNotReady
}

// Stats implements storage.Interface. A server calls it again and again, so it does not
// wake the cache: a sleeping cache returns the last known stats.
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

// rememberStats updates the stats that Stats returns while the cache sleeps. If storage
// fails, the last ones stay.
func (c *Cacher) rememberStats(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.FreshnessTimeout)
	defer cancel()
	_, _ = c.Stats(ctx)
}

// estimateSizes makes storage estimate the sizes of objects, for whose keys it asks the
// cache, when the cache is first awake. Later calls do nothing.
func (c *Cacher) estimateSizes() error {
	if c.config.DisableSizeEstimation || c.estimates.Swap(true) {
		return nil
	}
	if err := c.config.Storage.EnableResourceSizeEstimation(c.keys); err != nil {
		return faultf(err, "cacher.Config.Storage is %T: its size estimation can't be enabled", c.config.Storage)
	}
	return nil
}

// keys returns the keys whose sizes storage remembers: those of all objects, at least as
// new as the call, and none while the cache sleeps. It tries until ctx ends: storage logs
// each failure.
func (c *Cacher) keys(ctx context.Context) ([]string, error) {
	e := c.lifecycle.current()
	if e == nil {
		return nil, nil
	}
	var err error
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err = e.reachCurrent(ctx)
		return err == nil || e.ctx.Err() != nil, nil
	})
	if err != nil {
		return nil, err
	}
	snapshot := e.state.Latest()
	keys := make([]string, 0, snapshot.Len())
	snapshot.Range(e.config.ResourcePrefix, "", func(element *watchcache.Element) bool {
		keys = append(keys, element.Key)
		return true
	})
	return keys, nil
}
