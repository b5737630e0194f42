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
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/internal/setclock"
)

// inBubble runs f with a cache in virtual time.
func inBubble(t *testing.T, store func() *memstore.Store, f func(*testing.T, *memstore.Store, *cacher.Cacher), change ...func(*cacher.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := store()
		c := start(t, s, change...)
		f(t, s, c)
		c.Stop()
	})
}

// elapse lets virtual time pass; it is called in a bubble only.
func elapse(d time.Duration) { <-time.After(d) }

// received takes what is on its way, after everything has come to rest.
func received(w watch.Interface) (lines []string) {
	synctest.Wait()
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return append(lines, "closed")
			}
			lines = append(lines, line(event))
		default:
			return lines
		}
	}
}

func expectReceived(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	got := received(w)
	if !assert.Len(t, got, len(want), "want %q", want) {
		return
	}
	for i := range want {
		if !assert.Equal(t, want[i], got[i], "got %q, want %q", got, want) {
			return
		}
	}
}

// REGRESSIONS 39: Stop while bookmarks are sent sends on no closed channel.
func TestStopDuringBookmarks(t *testing.T) {
	for range 20 {
		inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			var watches []*podWatch
			for range 50 {
				watches = append(watches, watchPods(t, c, "/pods/", "1", withBookmarks))
			}
			elapse(61 * time.Second) // bookmarks are due now
			go func() {
				for _, w := range watches {
					w.Stop()
				}
			}()
			c.Stop()
			for _, w := range watches {
				w.expectClosed()
			}
		})
	}
}

// Bookmarks carry how far the dispatcher is. A watcher that has read ahead of it
// from the window gets none until the dispatcher has come there: none that is
// below an event that it has got.
func TestNoBookmarkToAWatcherAheadOfTheDispatcher(t *testing.T) {
	const events = 1000
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		slow := watchPods(t, c, "/pods/", "1")
		synctest.Wait()
		burst(store, events) // slow does not read: the dispatcher waits for it
		elapse(time.Second)
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
		config.DispatchBudget = 20 * time.Second
		config.BookmarkInterval = time.Second
	})
}

// A server that shuts down tells its clients where they are: at the storage's
// version, which other resources have moved on.
func TestBookmarkBeforeTheServerEnds(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		asked, other := watchPods(t, c, "/pods/", "2", withBookmarks), watchPods(t, c, "/pods/", "2")
		blocked := watchPods(t, c, "/pods/", "2", withBookmarks)
		expectReceived(t, asked)
		for range 3 {
			put(store, poddata.Pod("a/one")) // 5: more than the channel of a client that does not read
		}
		elapse(3 * time.Second)
		for _, w := range []*podWatch{asked, other} {
			for len(received(w)) > 0 {
			}
		}
		store.Touch()
		rv := store.Touch() // 7
		taken := make(chan error)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { taken <- c.Bookmark(ctx) }()
		synctest.Wait()
		expectReceived(t, asked, fmt.Sprintf("BOOKMARK@%d", rv))
		expectReceived(t, other)
		require.NoError(t, <-taken, "it waits for watches that are live only")
		blocked.cancel()
	}, func(config *cacher.Config) { config.WatchBuffer, config.DispatchBudget = 2, -1 })
}

// A server that shuts down while its storage is away still waits until its clients
// have taken their bookmarks, which are at the version that the cache has reached.
func TestBookmarkWithoutStorage(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2", withBookmarks)
		expectReceived(t, w)
		defer store.Gate("version")()
		store.Touch()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		taken := make(chan error, 1)
		go func() { taken <- c.Bookmark(ctx) }()
		elapse(1500 * time.Millisecond)
		expectReceived(t, w, "BOOKMARK@2")
		require.NoError(t, <-taken)
	})
}

// Bookmark does not wait for ever for a client that does not read, and not at all in
// a cache that has stopped.
func TestBookmarkWaitsForNobodyForEver(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1", withBookmarks)
		expectReceived(t, w)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Bookmark(ctx), context.DeadlineExceeded)
		expectReceived(t, w, "BOOKMARK@1")
		c.Stop()
		require.NoError(t, c.Bookmark(t.Context()))
	})
}

// whenTheClockIsSet runs a test in a bubble with a clock that the test sets back, and in
// another one where it sets it forward.
func whenTheClockIsSet(t *testing.T, f func(t *testing.T, store *memstore.Store, c *cacher.Cacher, clock *setclock.Clock, by time.Duration)) {
	for name, by := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := &setclock.Clock{}
			inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
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
