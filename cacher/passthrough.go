// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"

	"k8s.io/apiserver/pkg/storage"
)

// Versioner implements storage.Interface.
func (c *Cacher) Versioner() storage.Versioner { return c.config.Versioner }

// ReadinessCheck implements storage.Interface. It returns at once, with
// storage.ErrStorageNotReady as long as the cache can't serve. A sleeping cache
// can: a request will wake it.
func (c *Cacher) ReadinessCheck() error {
	if !c.Ready() {
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

// EnableResourceSizeEstimation implements storage.Interface. The cache has
// called it already when it was first awake, unless Config.DisableSizeEstimation
// is set.
func (c *Cacher) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return c.config.Storage.EnableResourceSizeEstimation(keys)
}

// CompactRevision implements storage.Interface.
func (c *Cacher) CompactRevision() int64 { return c.config.Storage.CompactRevision() }
