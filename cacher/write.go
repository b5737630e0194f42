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

// Writes go to the wrapped storage. Updates suggest the cached object as the current state, to save
// storage a read. On a conflict, a failed precondition or an error of the caller's function,
// storage reads the live object and retries. Deletions, and updates in a storage that encrypts,
// suggest nothing, because storage must refuse them for an object that it can no longer decrypt or
// decode.

// GuaranteedUpdate implements storage.Interface.
func (e *engine) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	return e.config.Storage.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, e.suggestion(key, suggestion))
}

// suggestion returns a copy of the cached object, because storage writes to it, or callers.
func (e *engine) suggestion(key string, callers runtime.Object) runtime.Object {
	if !e.condition.load().served() || e.config.encrypts {
		return callers
	}
	if element, _ := e.state.Get(key); element != nil {
		return element.Object.DeepCopyObject()
	}
	return callers
}

// Versioner implements storage.Interface.
func (c *Cacher) Versioner() storage.Versioner { return c.config.Versioner }

// ReadinessCheck implements storage.Interface. The error wraps storage.ErrStorageNotReady.
func (e *engine) ReadinessCheck() error {
	now := e.condition.load()
	if now.served() {
		return nil
	}
	if why := now.why(); why != nil {
		return fmt.Errorf("%w: %s", storage.ErrStorageNotReady, publicText(why))
	}
	return storage.ErrStorageNotReady
}

func estimateSizes(config *Config, keys storage.KeysFunc) error {
	if err := config.Storage.EnableResourceSizeEstimation(keys); err != nil {
		return faultf(err, "cacher.Config.Storage is %T: its size estimation can't be enabled", config.Storage)
	}
	return nil
}

// keys returns the keys of all objects, at least as new as the call, for storage's size estimator.
// It retries because storage logs each failure.
func (e *engine) keys(ctx context.Context) ([]string, error) {
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
