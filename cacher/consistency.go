// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// checkPageSize is the page size of a comparison's lists, if storage can't return versions alone.
// We hold one page at a time.
const checkPageSize = 500

// followConsistency compares the cache with storage periodically, and whenever the condition
// requires it. Jitter spreads the requests of caches that started together.
func (e *engine) followConsistency(ctx context.Context) {
	if e.config.ConsistencyCheckInterval < 0 {
		return
	}
	for {
		select {
		case <-e.config.Clock.After(wait.Jitter(e.config.ConsistencyCheckInterval, 0.5)):
		case <-e.compareNow:
		case <-ctx.Done():
			return
		}
		e.compare(ctx)
	}
}

// compare compares the latest snapshot with storage at the same resourceVersion. A difference means
// that the cache missed events (KEP-4988).
func (e *engine) compare(ctx context.Context) {
	began := e.condition.load()
	if !began.served() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.ConsistencyCheckInterval)
	defer cancel()
	latest := e.state.Latest()
	rv := latest.RV()
	compared := comparison{latest: latest, cached: latest.All()}
	if err := e.storedVersions(ctx, rv, compared.visit); err != nil {
		e.metrics.ConsistencyCheck(metrics.CheckError)
		err = faultf(err, "comparing the cache of %s with its storage at resourceVersion %d", e.config.GroupResource, rv)
		e.handle(event{kind: notCompared, began: began, err: err})
		return
	}
	difference := compared.stored ^ latest.Digest()
	if difference == 0 {
		e.metrics.ConsistencyCheck(metrics.CheckPassed)
		e.handle(event{kind: equal, began: began, rv: rv})
		return
	}
	e.metrics.ConsistencyCheck(metrics.CheckFailed)
	err := faultf(keyFaultf(nil, "%s", compared.difference()), "the cache of %s differs at resourceVersion %d from its storage", e.config.GroupResource, rv)
	e.handle(event{kind: differs, began: began, difference: difference, err: err})
}

// storedVersions calls visit with each of the resource's keys in storage at rv and the version of
// its last write.
func (e *engine) storedVersions(ctx context.Context, rv uint64, visit func(key string, rv uint64) error) error {
	if s, ok := e.config.Storage.(capability.VersionLister); ok {
		return s.Versions(ctx, e.config.ResourcePrefix, rv, visit)
	}
	return e.source.StateAt(ctx, e.config.ResourcePrefix, rv, checkPageSize, func(object runtime.Object) error {
		key, err := e.config.KeyFunc(object)
		if err != nil {
			return err
		}
		rv, err := e.config.Versioner.ObjectResourceVersion(object)
		if err != nil {
			return err
		}
		return visit(key, rv)
	})
}

// comparison compares a snapshot with storage's keys, in their order.
type comparison struct {
	latest *watchcache.Snapshot
	cached []*watchcache.Element // not visited yet
	stored watchcache.Digest     // of the visited keys
	first  string                // the first difference, or ""
}

func (c *comparison) visit(key string, rv uint64) error {
	// Of several objects with one key the state keeps the newest, so skip older ones. If storage
	// has no newer one, the digests differ.
	if cached := c.latest.Get(key); cached == nil || cached.RV <= rv {
		c.stored.Toggle(key, rv)
	}
	switch {
	case c.first != "":
	case len(c.cached) == 0:
		c.first = fmt.Sprintf("which has %q at %d beyond the cache's last key", key, rv)
	case c.cached[0].Key != key || c.cached[0].RV != rv:
		c.first = fmt.Sprintf("which has %q at %d where the cache has %q at %d", key, rv, c.cached[0].Key, c.cached[0].RV)
	default:
		c.cached = c.cached[1:]
	}
	return nil
}

func (c *comparison) difference() string {
	if c.first == "" && len(c.cached) > 0 {
		return fmt.Sprintf("which has nothing where the cache has %q at %d", c.cached[0].Key, c.cached[0].RV)
	}
	return c.first
}
