// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

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
				c := start(t, store, sleeping, unchecked)
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
	c := newCache(t, unsized{newStore(poddata.Pod("a/one"))}, lazily)
	expectList(t, c, "/pods/", "0", "a/one@2")
	assert.NotNil(t, c.Status().LastError, "the status says nothing of the error")
}

// panicky is a storage that panics when it is first asked for anything.
type panicky struct {
	*memstore.Store
	asked atomic.Bool
}

func (p *panicky) EnableResourceSizeEstimation(storage.KeysFunc) error {
	if !p.asked.Swap(true) {
		panic("no storage")
	}
	return nil
}

// A start that panics leaves the cache asleep: the next request wakes it.
func TestLazyStartThatPanics(t *testing.T) {
	c := newCache(t, &panicky{Store: newStore(poddata.Pod("a/one"))}, lazily)
	assert.Panics(t, func() { _ = c.GetList(t.Context(), "/pods/", everything("0"), &example.PodList{}) })
	expectList(t, c, "/pods/", "0", "a/one@2")
}

// Regression 132: a request that waits for the end of an idle cache's engine ends with
// its context, and the next one wakes the cache.
func TestRequestsWhileAnEngineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		s := stubborn{withoutKeys{store}, store, &atomic.Bool{}, make(chan struct{})}
		c := start(t, s, sleeping, func(c *cacher.Config) { c.DisableSizeEstimation, c.ConsistencyCheckInterval = true, -1 })
		s.holds.Store(true)
		expectRead(t, after(goGet(t.Context(), c, "/pods/a/one", "")), "a/one@2") // storage has not told its version
		elapse(2*idleTimeout + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		assert.Error(t, c.GetList(ctx, "/pods/", everything("0"), &example.PodList{}))
		assert.Equal(t, time.Millisecond, time.Since(began), "how long the request has waited")
		close(s.answer)
		expectList(t, c, "/pods/", "0", "a/one@2")
		c.Stop()
	})
}
