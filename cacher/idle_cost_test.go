// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

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

// What a server pays for a cache that nobody uses: the heap and the goroutines
// of one that is started, of one that was and sleeps, and of one that was never
// used. The storage is the same for all, and its watches are counted as theirs.
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
				if err := c.Wait(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
		}
		return func() {
			for _, c := range all {
				c.Stop()
			}
		}
	}
	// What exists once, of all caches, is not to be counted.
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
	stop = make(counting, func(c *cacher.Config) { c.IdleTimeout = 100 * time.Millisecond })
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
	if unusedGoroutines > 0.01 || asleepGoroutines > 0.01 {
		t.Errorf("a cache that sleeps has goroutines: %.2f never used, %.2f after use", unusedGoroutines, asleepGoroutines)
	}
	if most := heapStarted / 4; heapUnused > most || heapAsleep > most {
		t.Errorf("a cache that sleeps takes more than a quarter of the heap of one that is started, %d bytes: %d never used, %d after use",
			heapStarted, heapUnused, heapAsleep)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		if err := c.Wait(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, c := range all {
			c.Stop()
		}
	}
}
