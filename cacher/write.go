// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Writes go to storage. An update or a deletion is offered the cached object
// as a suggestion of the current state, which saves storage a read. Storage
// takes it for a suggestion only: on a conflict, a failed precondition or an
// error of the caller's function it reads the live object and tries again.

// Create implements storage.Interface.
func (c *Cacher) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return c.config.Storage.Create(ctx, key, obj, out, ttl)
}

// Delete implements storage.Interface.
func (c *Cacher) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions) error {
	return c.config.Storage.Delete(ctx, key, out, preconditions, validate, c.suggestion(key, suggestion), opts)
}

// GuaranteedUpdate implements storage.Interface.
func (c *Cacher) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	return c.config.Storage.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, c.suggestion(key, suggestion))
}

// suggestion returns a copy of the cached object, for storage writes to it
// while it serializes it; or what the caller suggests if there is none. A
// write does not wake a cache.
func (c *Cacher) suggestion(key string, callers runtime.Object) runtime.Object {
	prepared, err := storage.PrepareKey(c.config.ResourcePrefix, key, false)
	awake := c.sleep.engine.Load()
	if err != nil || awake == nil || !awake.readiness.ready() {
		return callers // storage reports what is wrong with the key
	}
	if e, _ := awake.state.Get(prepared); e != nil {
		return e.Object.DeepCopyObject()
	}
	return callers
}
