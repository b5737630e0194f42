// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Regressions 72 and 73: a client that was away while the storage was restored
// from a backup resumes at a resourceVersion of the history that is gone. The
// client is told, instead of getting nothing up to there.
func TestWatchFromAHistoryThatIsGone(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for range 10 {
			put(store, poddata.Pod("a/lost"))
		}
		store.Restore(2)
		elapse(2 * time.Minute)
		put(store, poddata.Pod("a/two")) // at 3
		expectReceived(t, watchPods(t, c, "/pods/", "12"), "ERROR 410 Expired", "closed")
		expectReceived(t, watchPods(t, c, "/pods/", "2"), "ADDED a/two@3")
	})
}

// Regression 73: a client that is ahead of the cache, and not of the storage,
// is served; so is one whose storage can't tell. Neither gets what it has seen.
func TestWatchAheadOfTheCache(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprint("storage away: ", away), func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				release := store.Hold()
				put(store, poddata.Pod("a/two"))
				put(store, poddata.Pod("a/three"))
				if away {
					store.Fail("version", errors.New("not now"))
				}
				w := watchPods(t, c, "/pods/", "4")
				put(store, poddata.Pod("a/four"))
				release()
				elapse(time.Second)
				expectReceived(t, w, "ADDED a/four@5")
			})
		})
	}
}

// Regression 75: watches that are opened in quick succession, while events
// come, each get every event after their start, once and in order.
func TestWatchesOpenedInQuickSuccession(t *testing.T) {
	const events = 100
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		opened := make(map[int][]*podWatch) // by the version that they begin after
		for at := 1; at <= events; at++ {
			for range 3 {
				opened[at] = append(opened[at], watchPods(t, c, "/pods/", fmt.Sprint(at)))
			}
			put(store, poddata.Pod(fmt.Sprint("a/", at)))
			if at%10 == 0 {
				synctest.Wait() // so that some are live and others catch up
			}
		}
		for at, watches := range opened {
			for _, w := range watches {
				for rv := at + 1; rv <= events+1; rv++ {
					w.expect(fmt.Sprintf("ADDED a/%d@%d", rv-1, rv))
				}
				synctest.Wait()
				select {
				case event := <-w.ResultChan():
					assert.Fail(t, fmt.Sprintf("the watch from %d got %s at the end", at, line(event)))
				default:
				}
			}
		}
	})
}

// Regression 80: a history without any event can be resumed from the version of
// the list that it begins with, and from none before.
func TestResumeWithAnEmptyHistory(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one"), poddata.Pod("a/two")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "3")
		expectReceived(t, watchPods(t, c, "/pods/", "2"), "ERROR 410 Expired", "closed")
		expectReceived(t, watchPods(t, c, "/pods/", "1"), "ERROR 410 Expired", "closed")
		put(store, poddata.Pod("a/three"))
		synctest.Wait()
		expectReceived(t, w, "ADDED a/three@4")
		// And once more, for one whose cache has progressed without an event.
		at := store.Touch()
		elapse(time.Minute)
		later := watchPods(t, c, "/pods/", fmt.Sprint(at))
		put(store, poddata.Pod("a/four"))
		synctest.Wait()
		expectReceived(t, later, "ADDED a/four@6")
	})
}
