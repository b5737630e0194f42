// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Versioner implements storage.Interface.
func (c *Cacher) Versioner() storage.Versioner { return c.config.Versioner }

// Stats implements storage.Interface.
func (c *Cacher) Stats(ctx context.Context) (storage.Stats, error) {
	return c.config.Storage.Stats(ctx)
}

// ReadinessCheck implements storage.Interface. It returns at once, with
// storage.ErrStorageNotReady as long as the cache can't serve.
func (c *Cacher) ReadinessCheck() error {
	if !c.readiness.ready() {
		return storage.ErrStorageNotReady
	}
	return nil
}

// RequestWatchProgress implements storage.Interface.
func (c *Cacher) RequestWatchProgress(ctx context.Context) error {
	return c.config.Storage.RequestWatchProgress(ctx)
}

// GetCurrentResourceVersion implements storage.Interface.
func (c *Cacher) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	return c.config.Storage.GetCurrentResourceVersion(ctx)
}

// EnableResourceSizeEstimation implements storage.Interface. New has called it
// already unless Config.DisableSizeEstimation is set.
func (c *Cacher) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return c.config.Storage.EnableResourceSizeEstimation(keys)
}

// CompactRevision implements storage.Interface.
func (c *Cacher) CompactRevision() int64 { return c.config.Storage.CompactRevision() }

// keys returns the keys of all objects, at least as new as the call: what
// storage estimates sizes for.
func (c *Cacher) keys(ctx context.Context) ([]string, error) {
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
