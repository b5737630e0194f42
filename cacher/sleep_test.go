// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// idleTimeout is that of the caches in these tests.
const idleTimeout = time.Minute

func lazily(c *cacher.Config)   { c.LazyStart = true }
func sleeping(c *cacher.Config) { c.IdleTimeout = idleTimeout }

// counting is a storage that is slow to tell how many objects it has, which is
// what a cache asks for last before it falls asleep.
type counting struct {
	*memstore.Store
	meanwhile atomic.Pointer[func()]
}

func (s *counting) Stats(ctx context.Context) (storage.Stats, error) {
	if meanwhile := s.meanwhile.Swap(nil); meanwhile != nil {
		(*meanwhile)()
	}
	return s.Store.Stats(ctx)
}

// REGRESSIONS 103: whoever comes when the cache is about to fall asleep keeps it
// awake, also if it is gone again by then.
func TestUsedWhileFallingAsleep(t *testing.T) {
	for name, use := range map[string]func(*testing.T, *memstore.Store, *cacher.Cacher){
		"a read that is over": func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
			expectList(t, c, "/pods/", "0", "a/one@2")
		},
		"a watch that is over": func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
			watchPods(t, c, "/pods/", "2").Stop()
		},
		"a watch": func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) { watchPods(t, c, "/pods/", "2") },
		"a read that waits": func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			before := store.Requests()["version"]
			open := store.Gate("version")
			t.Cleanup(open)
			go func() { _ = c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{}) }()
			assert.NoError(t, store.AwaitRequests(t.Context(), "version", before+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &counting{Store: newStore(poddata.Pod("a/one"))}
				c := start(t, store, sleeping, func(c *cacher.Config) { c.ConsistencyCheckInterval = -1 })
				meanwhile := func() { use(t, store.Store, c) }
				store.meanwhile.Store(&meanwhile)
				elapse(2*idleTimeout + time.Second)
				synctest.Wait()
				assert.False(t, store.meanwhile.Load() != nil, "the cache is about to fall asleep")
				assert.False(t, c.Status().Asleep, "the cache is asleep")
				c.Stop()
			})
		})
	}
}

// A lazy cache meets a storage that can't estimate sizes when New is over: it
// serves all the same, and says so.
func TestLazyStartWithoutSizes(t *testing.T) {
	store := unsized{newStore(poddata.Pod("a/one"))}
	c := newCache(t, store, lazily)
	expectList(t, c, "/pods/", "0", "a/one@2")
	assert.NotNil(t, c.Status().LastError, "the status says nothing of the error")
}

// Requests come while the cache falls asleep, sleeps and wakes: each is served,
// and each watch gets everything once.
func TestRequestsWhileFallingAsleep(t *testing.T) {
	store := newStore(poddata.Pod("a/one"))
	meters, metric := metered(t)
	c := start(t, store, meters, func(config *cacher.Config) {
		config.Clock, config.IdleTimeout, config.FreshnessTimeout = quickClock{began: time.Now()}, time.Second, time.Hour
		config.ConsistencyCheckInterval = -1
	})
	var wokenUp atomic.Int64
	ctx := testContext(t)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 7))
			for wokenUp.Load() < 30 {
				if c.Status().Asleep {
					wokenUp.Add(1)
				}
				if !assert.NoError(t, useOnce(ctx, c, random)) {
					return
				}
				pause(random.IntN(5))
			}
		})
	}
	all.Wait()
	watchPods(t, c, "/pods/", "0").expect("ADDED a/one@2")
	assert.Zero(t, metric("asleep"), "the cache is awake and its metrics sleep")
	// They are counted when all were sent.
	until(t, "the initial events are counted", func() bool { return metric("initial_events_total") != 0 })
}

// quickClock is a clock that runs a thousand times as fast as the real one.
type quickClock struct {
	clock.RealClock
	began time.Time
}

const quick = 1000

func (c quickClock) Now() time.Time                         { return c.began.Add(quick * time.Since(c.began)) }
func (c quickClock) Since(t time.Time) time.Duration        { return c.Now().Sub(t) }
func (c quickClock) After(d time.Duration) <-chan time.Time { return c.RealClock.After(d / quick) }
func (c quickClock) NewTimer(d time.Duration) clock.Timer   { return c.RealClock.NewTimer(d / quick) }

// pause waits for up to some milliseconds, for the cache to fall asleep or not.
func pause(n int) { <-time.After(time.Duration(n) * time.Millisecond) }

// useOnce makes one request of some kind and checks its answer.
func useOnce(ctx context.Context, c *cacher.Cacher, random *rand.Rand) error {
	switch random.IntN(3) {
	case 0:
		pod := &example.Pod{}
		if err := c.Get(ctx, "/pods/a/one", storage.GetOptions{}, pod); err != nil || pod.Name != "one" {
			return fmt.Errorf("GET: %q, %w", pod.Name, err)
		}
	case 1:
		pods := &example.PodList{}
		if err := c.GetList(ctx, "/pods/", everything(""), pods); err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("LIST: %d pods, %w", len(pods.Items), err)
		}
	case 2:
		w, err := c.Watch(new(cacher.ListEncodings).ShareInitialEvents(ctx), "/pods/", everything("0"))
		if err != nil {
			return fmt.Errorf("WATCH: %w", err)
		}
		defer w.Stop()
		event, ok := <-w.ResultChan()
		if _, cached := event.Object.(runtime.CacheableObject); !ok || !cached {
			return fmt.Errorf("WATCH: got %v, open is %v", event, ok)
		}
	}
	return nil
}

// Wait ends with its context and with the cache.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.Gate("watch")
		c := newCache(t, store)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.ErrorIs(t, c.Wait(ctx), context.DeadlineExceeded)
		ended := make(chan error, 1)
		go func() { ended <- c.Wait(t.Context()) }()
		synctest.Wait()
		c.Stop()
		assert.Error(t, <-ended, "Wait has not failed when the cache was stopped")
		assert.Error(t, c.Wait(t.Context()), "Wait does not fail after the cache was stopped")
	})
}
