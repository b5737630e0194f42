// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/heapsize"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// sizeOf estimates the memory that a decoded object takes together with its
// labels, in bytes: everything that it refers to, whatever its type. Shared strings
// count each time, so the estimate is an upper bound.
func sizeOf(object runtime.Object, labels labels.Set) int64 {
	size := heapsize.Of(object)
	if _, ok := object.(runtime.Unstructured); ok {
		// Such an object has no map of strings for its labels: they were copied
		// to one.
		size += heapsize.Of(labels)
	}
	return size
}

// estimateSizes makes storage estimate the sizes of objects; storage asks the cache for
// their keys from time to time. The estimation costs storage a goroutine, so it begins
// when the cache is first awake. Later calls do nothing.
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
// new as the call, and none while the cache sleeps.
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
