// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// cost is what something takes.
type cost struct {
	goroutines float64
	heap       int64 // bytes
}

func costNow() cost {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return cost{float64(runtime.NumGoroutine()), int64(stats.HeapAlloc)}
}

// The cost of a cache that is not used: the heap and the goroutines of one that
// is started, of one that was and sleeps, and of one that was never used. The
// storage is the same for all, and its watches are counted as theirs.
func TestHeapOfIdleCaches(t *testing.T) {
	const objects = 20
	caches := 500
	if race.Enabled {
		caches = 50
	}
	store := newStore()
	for i := range objects {
		put(store, poddata.Pod("a/pod-"+string(rune('a'+i))))
	}
	meters, sum := metered(t)
	codec := poddata.Codec()
	// costOf is the cost of one of many caches.
	costOf := func(change ...func(*cacher.Config)) cost {
		before := costNow()
		all := []*cacher.Cacher{}
		for i := range caches {
			all = append(all, newCache(t, store, append(change, func(c *cacher.Config) {
				c.Codec = codec
				c.GroupResource = schema.GroupResource{Group: "example.com", Resource: "pods-" + strconv.Itoa(i)}
			})...))
		}
		for _, c := range all {
			defer c.Stop()
			if !c.Config().LazyStart {
				require.NoError(t, c.Wait(testContext(t)))
			}
		}
		if all[0].Config().IdleTimeout > 0 {
			until(t, "all caches sleep", func() bool { return sum("asleep") == float64(caches) })
		}
		now := costNow()
		return cost{(now.goroutines - before.goroutines) / float64(caches), (now.heap - before.heap) / int64(caches)}
	}
	costOf(meters) // memory that all caches share must not be counted
	unused, started := costOf(lazily, meters), costOf(meters)
	asleep := costOf(meters, func(c *cacher.Config) { c.IdleTimeout = time.Second })
	t.Logf("a cache of %d objects: never used %+v, started %+v (without metrics %+v), asleep %+v", objects, unused, started, costOf(), asleep)
	for name, idle := range map[string]cost{"never used": unused, "asleep": asleep} {
		assert.LessOrEqual(t, idle.goroutines, 0.01, "the goroutines of a cache that is %s", name)
		assert.LessOrEqual(t, idle.heap, started.heap/4, "the heap of a cache that is %s, and a quarter of that of one that is started", name)
	}
}

// A watcher at rest costs no goroutine.
func TestIdleWatchersHaveNoGoroutines(t *testing.T) {
	const watchers = 2_000
	store := newStore()
	before := runtime.NumGoroutine()
	c := start(t, store)
	watches := open(t, c, store, watchers)
	allLive(t, c, watchers)
	until(t, "their goroutines end", func() bool { return runtime.NumGoroutine()-before <= 20 })
	for _, w := range watches {
		w.Stop()
	}
	until(t, "all watchers are forgotten", func() bool { return len(c.Status().Watchers) == 0 })
}
