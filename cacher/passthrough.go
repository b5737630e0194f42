// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/storage"
)

// Versioner implements storage.Interface.
func (c *Cacher) Versioner() storage.Versioner { return c.config.Versioner }

// ReadinessCheck implements storage.Interface. ReadinessCheck returns at once.
// While the cache can't serve, the error wraps storage.ErrStorageNotReady, and
// the reason if that is known. A sleeping cache can serve: a request will wake
// it.
func (c *Cacher) ReadinessCheck() error {
	if c.Ready() {
		return nil
	}
	if e := c.lifecycle.current(); e != nil {
		if why := e.readiness.why(); why != nil {
			return fmt.Errorf("%w: %w", storage.ErrStorageNotReady, why)
		}
	}
	return storage.ErrStorageNotReady
}

// RequestWatchProgress implements storage.Interface.
func (c *Cacher) RequestWatchProgress(ctx context.Context) error {
	return c.config.Storage.RequestWatchProgress(ctx)
}

// GetCurrentResourceVersion implements storage.Interface.
func (c *Cacher) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	return c.config.Storage.GetCurrentResourceVersion(ctx)
}

// EnableResourceSizeEstimation implements storage.Interface. The cache calls it
// on the wrapped storage itself when it is first awake, unless
// Config.DisableSizeEstimation is set.
func (c *Cacher) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return c.config.Storage.EnableResourceSizeEstimation(keys)
}

// CompactRevision implements storage.Interface.
func (c *Cacher) CompactRevision() int64 { return c.config.Storage.CompactRevision() }
