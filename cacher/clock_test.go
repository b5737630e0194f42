// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
)

// setClock is the clock of a machine whose time of day is set: its times say
// another time of day from then on, and pass as before.
type setClock struct {
	clock.RealClock
	by    atomic.Int64 // seconds
	stood atomic.Int64 // nanoseconds that have passed at once
}

// monotonic is the layout of a time.Time that has a monotonic reading, which
// those of a bubble don't have. TestSetClock checks that it is still so.
type monotonic struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

func (c *setClock) Now() time.Time {
	now := time.Now().Add(time.Duration(c.stood.Load()))
	seconds := uint64(now.Unix() + c.by.Load() - time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
	forged := monotonic{wall: 1<<63 | seconds<<30 | uint64(now.Nanosecond()), ext: now.UnixNano()}
	return *(*time.Time)(unsafe.Pointer(&forged))
}

func (c *setClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *setClock) set(by time.Duration) { c.by.Add(int64(by / time.Second)) }

func TestSetClock(t *testing.T) {
	for _, by := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := &setClock{}
			before := c.Now()
			c.set(by)
			elapse(time.Second)
			after := c.Now()
			assert.Equal(t, time.Second, after.Sub(before), "set by %v: the time that has passed", by)
			assert.Equal(t, int64(by/time.Second)+1, after.Unix()-before.Unix(), "set by %v: the time of day went from %v to %v", by, before, after)
		})
	}
}

// REGRESSIONS 63 and 92: bookmarks come at their interval, neither late nor at
// once, when the machine's clock is set while the watch is open.
func TestBookmarksWhenTheClockIsSet(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setClock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "1", withBookmarks)
				synctest.Wait()
				elapse(cacher.DefaultBookmarkInterval / 2)
				clock.set(by)
				elapse(cacher.DefaultBookmarkInterval/2 - 2*time.Second)
				expectReceived(t, w)
				for range 3 {
					elapse(4 * time.Second)
					expectReceived(t, w, "BOOKMARK@1")
					elapse(cacher.DefaultBookmarkInterval - 3*time.Second)
					expectReceived(t, w)
				}
			}, func(config *cacher.Config) { config.Clock = clock })
		})
	}
}

// REGRESSIONS 63 and 92: the window keeps events for as long as it is to, and
// no longer, when the machine's clock is set.
func TestWindowWhenTheClockIsSet(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setClock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				const events = 1000
				burst(store, events)
				elapse(2 * time.Second)
				clock.set(by)
				elapse(2 * time.Second)
				burst(store, events)
				elapse(cacher.DefaultEventsHistoryWindow - 10*time.Second)
				assert.Equal(t, 2*events, c.Status().WindowEvents, "the events that are kept, before their time has passed")
				elapse(15 * time.Second)
				assert.LessOrEqual(t, c.Status().WindowEvents, events/2, "the events that are kept after their time has passed, of %d", 2*events)
			}, func(config *cacher.Config) { config.Clock = clock })
		})
	}
}

// REGRESSIONS 92: the last bookmark before a request's end comes in time, also
// when the clock is set after the request has begun.
func TestBookmarkBeforeDeadlineWhenTheClockIsSet(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setClock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				opts := everything("1")
				opts.Predicate.AllowWatchBookmarks = true
				w, err := c.Watch(ctx, "/pods/", opts)
				require.NoError(t, err)
				elapse(5 * time.Second)
				clock.set(by)
				elapse(12 * time.Second)
				expectReceived(t, w)
				elapse(2500 * time.Millisecond)
				expectReceived(t, w, "BOOKMARK@1")
				elapse(time.Second)
				expectReceived(t, w, "closed")
			}, func(config *cacher.Config) { config.Clock = clock })
		})
	}
}

// REGRESSIONS 108: what is due before the dispatcher has looked for the first
// time is not forgotten.
func TestBookmarksDueBeforeTheFirstTick(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		often := watchPods(t, c, "/pods/", "1", withBookmarks)
		elapse(1500 * time.Millisecond)
		expectReceived(t, often, "BOOKMARK@1")
		elapse(2 * time.Second)
		assert.NotEmpty(t, received(often), "no more bookmarks come")
	}, func(config *cacher.Config) { config.BookmarkInterval = 300 * time.Millisecond })
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		opts := storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything, Recursive: true}
		opts.Predicate.AllowWatchBookmarks = true
		w, err := c.Watch(ctx, "/pods/", opts)
		require.NoError(t, err)
		elapse(2 * time.Second)
		expectReceived(t, w, "BOOKMARK@1")
	})
}

// A machine that stood still for a hundred years has its watchers get one
// bookmark each, and costs no walk over all the seconds of those years.
func TestBookmarksAfterAStandstill(t *testing.T) {
	clock := &setClock{}
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1", withBookmarks)
		synctest.Wait()
		clock.stood.Add(int64(100 * 365 * 24 * time.Hour))
		elapse(5 * time.Second)
		expectReceived(t, w, "BOOKMARK@1")
		elapse(cacher.DefaultBookmarkInterval)
		expectReceived(t, w, "BOOKMARK@1")
	}, func(config *cacher.Config) { config.Clock = clock })
}
