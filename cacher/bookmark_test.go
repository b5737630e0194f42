// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
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
