// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// checkPageSize is the page size of a comparison's lists, if storage can't return versions alone.
// We hold one page at a time.
const checkPageSize = 500

// comparer compares a cache with its storage.
type comparer struct {
	*base
	source *source.Source
	now    chan struct{} // orders a comparison
}

// order makes run compare now.
func (c *comparer) order() {
	select {
	case c.now <- struct{}{}:
	default:
	}
}

// run compares the cache with storage periodically, and whenever the condition
// requires it. Jitter spreads the requests of caches that started together.
func (c *comparer) run(ctx context.Context) {
	if c.config.ConsistencyCheckInterval < 0 {
		return
	}
	for {
		select {
		case <-c.config.Clock.After(wait.Jitter(c.config.ConsistencyCheckInterval, 0.5)):
		case <-c.now:
		case <-ctx.Done():
			return
		}
		c.compare(ctx)
	}
}

// compare compares the latest snapshot with storage at the same resourceVersion. A difference means
// that the cache missed events (KEP-4988).
func (c *comparer) compare(ctx context.Context) {
	began := c.condition.load()
	if !began.served() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.ConsistencyCheckInterval)
	defer cancel()
	latest := c.state.Latest()
	rv := latest.RV()
	compared := comparison{latest: latest, cached: latest.All()}
	if err := c.storedVersions(ctx, rv, compared.visit); err != nil {
		c.metrics.ConsistencyCheck(metrics.CheckError)
		err = faultf(err, "comparing the cache of %s with its storage at resourceVersion %d", c.config.GroupResource, rv)
		c.condition.handle(event{kind: notCompared, began: began, err: err})
		return
	}
	difference := compared.stored ^ latest.Digest()
	if difference == 0 {
		c.metrics.ConsistencyCheck(metrics.CheckPassed)
		c.condition.handle(event{kind: equal, began: began, rv: rv})
		return
	}
	c.metrics.ConsistencyCheck(metrics.CheckFailed)
	err := faultf(keyFaultf(nil, "%s", compared.difference()), "the cache of %s differs at resourceVersion %d from its storage", c.config.GroupResource, rv)
	c.condition.handle(event{kind: differs, began: began, difference: difference, err: err})
}

// storedVersions calls visit with each of the resource's keys in storage at rv and the version of
// its last write.
func (c *comparer) storedVersions(ctx context.Context, rv uint64, visit func(key string, rv uint64) error) error {
	if s, ok := c.config.Storage.(capability.VersionLister); ok {
		return s.Versions(ctx, c.config.ResourcePrefix, rv, visit)
	}
	return c.source.StateAt(ctx, c.config.ResourcePrefix, rv, checkPageSize, func(object runtime.Object) error {
		key, err := c.config.KeyFunc(object)
		if err != nil {
			return err
		}
		rv, err := c.config.Versioner.ObjectResourceVersion(object)
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
