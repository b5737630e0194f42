// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
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
	if len(got) != len(want) {
		t.Errorf("got %q, want %q", got, want)
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %q, want %q", got, want)
			return
		}
	}
}

// Bookmarks come at their interval, to those who ask for them, and carry what
// was dispatched.
func TestBookmarksComeAtTheirInterval(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		asks, silent := watchPods(t, c, "/pods/", "2", withBookmarks), watchPods(t, c, "/pods/", "2")
		synctest.Wait()
		elapse(29 * time.Second)
		put(store, poddata.Pod("a/two"))
		expectReceived(t, asks, "ADDED a/two@3")
		elapse(3 * time.Second)
		expectReceived(t, asks, "BOOKMARK@3")
		elapse(33 * time.Second)
		expectReceived(t, asks, "BOOKMARK@3")
		expectReceived(t, silent, "ADDED a/two@3")
	}, func(config *cacher.Config) { config.BookmarkInterval = 30 * time.Second })
}

// REGRESSIONS 34: the bookmarks of an idle resource advance with the storage.
func TestBookmarksOfAnIdleResourceAdvance(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1", withBookmarks)
		synctest.Wait()
		for range 8 {
			store.Touch()
		}
		if err := store.RequestWatchProgress(t.Context()); err != nil { // as etcd reports by itself now and then
			t.Fatal(err)
		}
		elapse(62 * time.Second)
		expectReceived(t, w, "BOOKMARK@9")
	})
}

// A watcher gets a last bookmark 2 s before its request ends, however long the
// interval is.
func TestBookmarkBeforeDeadline(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		opts := storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything, Recursive: true}
		opts.Predicate.AllowWatchBookmarks = true
		w, err := c.Watch(ctx, "/pods/", opts)
		if err != nil {
			t.Fatal(err)
		}
		put(store, poddata.Pod("a/one"))
		elapse(17 * time.Second)
		expectReceived(t, w, "ADDED a/one@2")
		elapse(2500 * time.Millisecond)
		expectReceived(t, w, "BOOKMARK@2")
		elapse(time.Second)
		expectReceived(t, w, "closed")
	})
}

// REGRESSIONS 32 and 33: the end of initial events comes right after them,
// regular bookmarks later.
func TestInitialEventsEnd(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "0", streaming)
		none := watchPods(t, c, "/pods/", "0", streaming, selecting("no=match", ""), withBookmarks)
		expectReceived(t, w, "ADDED a/one@2", "BOOKMARK@2 end of initial events")
		expectReceived(t, none, "BOOKMARK@2 end of initial events")
		elapse(62 * time.Second)
		expectReceived(t, w, "BOOKMARK@2")
	})
}

// A slow watcher gets no bookmark that would overtake what it has not got.
func TestNoBookmarkToAParkedWatcher(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1", withBookmarks)
		synctest.Wait()
		last := burst(store, 100)
		elapse(130 * time.Second)
		count := 0
		for r := (&counter{Interface: w.Interface, last: 1}); r.last < last; count++ {
			select {
			case event := <-w.ResultChan():
				if event.Type == watch.Bookmark {
					t.Fatalf("%s before event %d of %d", line(event), r.last+1, last)
				}
				r.take(event, true)
				if r.err != nil {
					t.Fatal(r.err)
				}
			case <-time.After(time.Second):
				t.Fatalf("nothing comes after %d", r.last)
			}
		}
		elapse(62 * time.Second)
		expectReceived(t, w, "BOOKMARK@101")
	}, func(config *cacher.Config) { config.EventsHistoryWindow = time.Hour })
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
