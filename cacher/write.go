// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Writes go to storage. Updates pass the cached object on as a suggestion of the
// current state, which saves storage a read. Storage does not rely on it: on a
// conflict, a failed precondition or an error of the caller's function, storage reads
// the live object and tries again. Deletions pass nothing on: storage must refuse to
// delete an object that it can't decrypt or decode any more, and so must a storage
// that encrypts refuse to update one.

// Create implements storage.Interface.
func (c *Cacher) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return c.config.Storage.Create(ctx, key, obj, out, ttl)
}

// Delete implements storage.Interface.
func (c *Cacher) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions) error {
	return c.config.Storage.Delete(ctx, key, out, preconditions, validate, suggestion, opts)
}

// GuaranteedUpdate implements storage.Interface.
func (c *Cacher) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	return c.config.Storage.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, c.suggestion(key, suggestion))
}

// suggestion returns a copy of the cached object, or the caller's suggestion if
// the cache has none. A copy, because storage writes to the object while it
// serializes it. A write does not wake a cache.
func (c *Cacher) suggestion(key string, callers runtime.Object) runtime.Object {
	e := c.lifecycle.current()
	if e == nil || !e.readiness.ready() || c.encrypts {
		return callers
	}
	if element, _ := e.state.Get(key); element != nil {
		return element.Object.DeepCopyObject()
	}
	return callers
}

// Versioner implements storage.Interface.
func (c *Cacher) Versioner() storage.Versioner { return c.config.Versioner }

// ReadinessCheck implements storage.Interface. It returns at once.
// While the cache can't serve, the error wraps storage.ErrStorageNotReady, and
// the reason if that is known. A sleeping cache can serve: a request will wake
// it.
func (c *Cacher) ReadinessCheck() error {
	if c.Ready() {
		return nil
	}
	if e := c.lifecycle.current(); e != nil {
		if why := e.readiness.why(); why != nil {
			return fmt.Errorf("%w: %s", storage.ErrStorageNotReady, publicText(why))
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
