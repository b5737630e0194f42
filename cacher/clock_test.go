// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/setclock"
)

// REGRESSIONS 63 and 92: bookmarks come at their interval, neither late nor at
// once, when the machine's clock is set while the watch is open.
func TestBookmarksWhenTheClockIsSet(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setclock.Clock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "1", withBookmarks)
				synctest.Wait()
				elapse(cacher.DefaultBookmarkInterval / 2)
				clock.Set(by)
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
			clock := &setclock.Clock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				const events = 1000
				burst(store, events)
				elapse(2 * time.Second)
				clock.Set(by)
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
			clock := &setclock.Clock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				opts := everything("1")
				opts.Predicate.AllowWatchBookmarks = true
				w, err := c.Watch(ctx, "/pods/", opts)
				require.NoError(t, err)
				elapse(5 * time.Second)
				clock.Set(by)
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

// REGRESSIONS 92: so does the last bookmark of a request that begins after the clock
// was set.
func TestBookmarkBeforeDeadlineAfterTheClockWasSet(t *testing.T) {
	for name, by := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setclock.Clock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
				elapse(5 * time.Second)
				clock.Set(by)
				ctx, cancel := clock.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				opts := everything("1")
				opts.Predicate.AllowWatchBookmarks = true
				w, err := c.Watch(ctx, "/pods/", opts)
				require.NoError(t, err)
				elapse(17 * time.Second)
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
	clock := &setclock.Clock{}
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1", withBookmarks)
		synctest.Wait()
		clock.Stand(100 * 365 * 24 * time.Hour)
		elapse(5 * time.Second)
		expectReceived(t, w, "BOOKMARK@1")
		elapse(cacher.DefaultBookmarkInterval)
		expectReceived(t, w, "BOOKMARK@1")
	}, func(config *cacher.Config) { config.Clock = clock })
}
