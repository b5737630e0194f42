// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/heapsize"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// sizeOf estimates the memory that a decoded object takes together with its
// labels, in bytes: everything that it refers to, whatever its type. Strings
// that share memory are counted each, so that what the estimates bound is
// bounded.
func sizeOf(object runtime.Object, labels labels.Set) int64 {
	size := heapsize.Of(object)
	if _, ok := object.(runtime.Unstructured); ok {
		// Such an object has no map of strings for its labels: they were copied
		// to one.
		size += heapsize.Of(labels)
	}
	return size
}

// estimateSizes makes storage estimate the sizes of objects, for which storage
// asks the cache for their keys from time to time. Only the first call, when the
// cache is first awake, does so: the estimation costs storage a goroutine.
func (c *Cacher) estimateSizes() error {
	if c.config.DisableSizeEstimation || c.estimates.Swap(true) {
		return nil
	}
	if err := c.config.Storage.EnableResourceSizeEstimation(c.keys); err != nil {
		return fmt.Errorf("cacher.Config.Storage is %T: its size estimation can't be enabled: %w", c.config.Storage, err)
	}
	return nil
}

// keys returns the keys that storage is to remember the sizes of: those of all
// objects, at least as new as the call, and none while the cache sleeps.
func (c *Cacher) keys(ctx context.Context) ([]string, error) {
	e := c.lifecycle.current()
	if e == nil {
		return nil, nil
	}
	return e.keys(ctx)
}

func (e *engine) keys(ctx context.Context) ([]string, error) {
	rv, err := e.currentVersion(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.waiting.Wait(ctx, rv); err != nil {
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
