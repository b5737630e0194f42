// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	shipped "k8s.io/apiserver/pkg/storage/cacher"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// cost is what something takes.
type cost struct {
	goroutines int
	heap       int64 // bytes
}

func costNow() cost {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return cost{runtime.NumGoroutine(), int64(stats.HeapAlloc)}
}

func (c cost) perCache(before cost, n int) (goroutines float64, heap int64) {
	return float64(c.goroutines-before.goroutines) / float64(n), (c.heap - before.heap) / int64(n)
}

// The cost of a cache that is not used: the heap and the goroutines of one that
// is started, of one that was and sleeps, and of one that was never used. The
// storage is the same for all, and its watches are counted as theirs.
func TestHeapOfIdleCaches(t *testing.T) {
	const caches, objects = 500, 20
	names := make([]string, 0, objects)
	store := newStore()
	for i := range objects {
		names = append(names, "a/pod-"+string(rune('a'+i)))
		put(store, poddata.Pod(names[i]))
	}
	counting, sum := counted(t)
	codec := poddata.Codec()
	make := func(change ...func(*cacher.Config)) (stop func()) {
		all := []*cacher.Cacher{}
		for i := range caches {
			all = append(all, newCache(t, store, append(change, func(c *cacher.Config) {
				c.Codec = codec
				c.GroupResource = schema.GroupResource{Group: "example.com", Resource: "pods-" + strconv.Itoa(i)}
			})...))
		}
		for _, c := range all {
			if !c.Config().LazyStart {
				require.NoError(t, c.Wait(testContext(t)))
			}
		}
		return func() {
			for _, c := range all {
				c.Stop()
			}
		}
	}
	// Memory that all caches share must not be counted.
	make(counting)()

	before := costNow()
	stop := make(lazily, counting)
	_, heapUnused := costNow().perCache(before, caches)
	unusedGoroutines, _ := costNow().perCache(before, caches)
	stop()

	before = costNow()
	stop = make(counting)
	startedGoroutines, heapStarted := costNow().perCache(before, caches)
	stop()

	before = costNow()
	stop = make(counting, func(c *cacher.Config) { c.IdleTimeout = time.Second })
	until(t, "all caches sleep", func() bool { return sum("asleep") == caches })
	asleepGoroutines, heapAsleep := costNow().perCache(before, caches)
	stop()

	before = costNow()
	stop = make()
	_, heapUncounted := costNow().perCache(before, caches)
	stop()

	before = costNow()
	stop = startShipped(t, store, caches, codec)
	shippedGoroutines, heapShipped := costNow().perCache(before, caches)
	stop()

	t.Logf("a cache of %d objects: never used %d bytes and %.2f goroutines, started %d (%d without metrics) and %.2f, asleep %d and %.2f; the shipped one, started, %d and %.2f",
		objects, heapUnused, unusedGoroutines, heapStarted, heapUncounted, startedGoroutines, heapAsleep, asleepGoroutines, heapShipped, shippedGoroutines)
	assert.LessOrEqual(t, unusedGoroutines, 0.01, "the goroutines of a cache that was never used")
	assert.LessOrEqual(t, asleepGoroutines, 0.01, "the goroutines of a cache that sleeps after use")
	most := heapStarted / 4
	assert.LessOrEqual(t, heapUnused, most, "a cache that was never used takes more than a quarter of the heap of one that is started, %d bytes", heapStarted)
	assert.LessOrEqual(t, heapAsleep, most, "a cache that sleeps after use takes more than a quarter of the heap of one that is started, %d bytes", heapStarted)
}

// startShipped starts caches of k8s.io/apiserver's over the store.
func startShipped(t *testing.T, store storage.Interface, n int, codec kruntime.Codec) (stop func()) {
	t.Helper()
	all := []*shipped.Cacher{}
	for i := range n {
		c, err := shipped.NewCacherFromConfig(shipped.Config{
			Storage: store, Versioner: storage.APIObjectVersioner{},
			GroupResource:       schema.GroupResource{Group: "example.com", Resource: "pods-" + strconv.Itoa(i)},
			EventsHistoryWindow: cacher.DefaultEventsHistoryWindow, ResourcePrefix: poddata.Prefix,
			KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: codec,
		})
		require.NoError(t, err)
		all = append(all, c)
	}
	for _, c := range all {
		require.NoError(t, c.Wait(testContext(t)))
	}
	return func() {
		for _, c := range all {
			c.Stop()
		}
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
