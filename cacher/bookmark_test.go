// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/setclock"
)

// Bookmarks carry how far the dispatcher is. A watcher that has read ahead of it
// from the window gets none until the dispatcher has come there: none that is
// below an event that it has got.
func TestNoBookmarkToAWatcherAheadOfTheDispatcher(t *testing.T) {
	const events = 1000
	inBubble(t, noPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		slow := watchPods(t, c, "/pods/", "1")
		synctest.Wait()
		burst(store, events) // slow does not read: the dispatcher waits for it
		elapse(time.Second / 2)
		ahead := &counter{Interface: watchPods(t, c, "/pods/", "1", withBookmarks), last: 1}
		fresh := watchPods(t, c, "/pods/", "0", streaming)
		ahead.readTo(testContext(t), events+1)
		require.NoError(t, ahead.err)
		for line := fresh.next(); line != fmt.Sprintf("BOOKMARK@%d end of initial events", events+1); line = fresh.next() {
		}
		synctest.Wait()
		status := c.Status().Watchers
		require.Len(t, status, 3, "the watchers are %+v", status)
		slow.Stop() // the dispatcher goes on, a batch at a time
		elapse(40 * time.Second)
		want := fmt.Sprintf("BOOKMARK@%d", events+1)
		for _, w := range []watch.Interface{ahead, fresh} {
			lines := received(w)
			for _, line := range lines {
				if !assert.Equal(t, want, line, "got %q, want %q only", lines, want) {
					break
				}
			}
			assert.NotEmpty(t, lines, "no bookmark comes")
		}
	}, func(config *cacher.Config) {
		config.DispatchBudget = time.Second
		config.BookmarkInterval = time.Second
	})
}

// whenTheClockIsSet runs a test in a bubble with a clock that the test sets back, and in
// another one where it sets it forward.
func whenTheClockIsSet(t *testing.T, f func(t *testing.T, store *memstore.Store, c *cacher.Cacher, clock *setclock.Clock, by time.Duration)) {
	for name, by := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setclock.Clock{}
			inBubble(t, noPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				f(t, store, c, clock, by)
			}, func(config *cacher.Config) { config.Clock = clock })
		})
	}
}

// REGRESSIONS 63 and 92: bookmarks come at their interval, neither late nor at
// once, when the machine's clock is set while the watch is open.
func TestBookmarksWhenTheClockIsSet(t *testing.T) {
	whenTheClockIsSet(t, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher, clock *setclock.Clock, by time.Duration) {
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
	})
}

// REGRESSIONS 63 and 92: the window keeps events for as long as it is to, and
// no longer, when the machine's clock is set.
func TestWindowWhenTheClockIsSet(t *testing.T) {
	whenTheClockIsSet(t, func(t *testing.T, store *memstore.Store, c *cacher.Cacher, clock *setclock.Clock, by time.Duration) {
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
	})
}

// REGRESSIONS 92: the last bookmark before a request's end comes in time, also
// when the clock is set after the request has begun, or before.
func TestBookmarkBeforeDeadlineWhenTheClockIsSet(t *testing.T) {
	for _, before := range []bool{false, true} {
		t.Run(fmt.Sprint("before the request: ", before), func(t *testing.T) {
			whenTheClockIsSet(t, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher, clock *setclock.Clock, by time.Duration) {
				timeout := context.WithTimeout
				if before {
					clock.Set(by)
					timeout = clock.WithTimeout
				}
				ctx, cancel := timeout(t.Context(), 20*time.Second)
				defer cancel()
				opts := everything("1")
				opts.Predicate.AllowWatchBookmarks = true
				w, err := c.Watch(ctx, "/pods/", opts)
				require.NoError(t, err)
				elapse(5 * time.Second)
				if !before {
					clock.Set(by)
				}
				elapse(12 * time.Second)
				expectReceived(t, w)
				elapse(2500 * time.Millisecond)
				expectReceived(t, w, "BOOKMARK@1")
				elapse(time.Second)
				expectReceived(t, w, "closed")
			})
		})
	}
}

// A machine that stood still for a hundred years has its watchers get one
// bookmark each, and costs no walk over all the seconds of those years.
func TestBookmarksAfterAStandstill(t *testing.T) {
	clock := &setclock.Clock{}
	inBubble(t, noPods, func(t *testing.T, _ *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1", withBookmarks)
		synctest.Wait()
		clock.Stand(100 * 365 * 24 * time.Hour)
		elapse(5 * time.Second)
		expectReceived(t, w, "BOOKMARK@1")
		elapse(cacher.DefaultBookmarkInterval)
		expectReceived(t, w, "BOOKMARK@1")
	}, func(config *cacher.Config) { config.Clock = clock })
}
