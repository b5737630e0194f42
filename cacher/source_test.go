// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A storage watch that breaks is resumed where it broke: nobody notices, and
// nothing is listed.
func TestBrokenStorageWatchResumes(t *testing.T) {
	for name, failure := range map[string]*apierrors.StatusError{
		"closed":         nil,
		"internal error": apierrors.NewInternalError(errors.New("no leader")),
		"unavailable":    apierrors.NewServiceUnavailable("gone for a moment"),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "2")
				for range 5 {
					store.BreakWatches(failure)
					put(store, poddata.Pod("a/one"))
					elapse(10 * time.Second)
				}
				expectReceived(t, w, "MODIFIED a/one@3", "MODIFIED a/one@4", "MODIFIED a/one@5", "MODIFIED a/one@6", "MODIFIED a/one@7")
				if requests := store.Requests(); requests["watch"] != 6 || requests["list"] != 0 {
					t.Errorf("the storage got %v, want 6 watches and no list", requests)
				}
				if last := c.Status().LastError; last == nil {
					t.Error("the status does not mention it")
				}
			})
		})
	}
}

// An unreachable storage is waited for, however long it takes.
func TestUnreachableStorageIsWaitedFor(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		store.Fail("watch", errors.New("connection refused"))
		store.BreakWatches(nil)
		put(store, poddata.Pod("a/two"))
		elapse(10 * time.Minute)
		expectReceived(t, w)
		expectList(t, c, "/pods/", "0", "a/one@2") // as old as it is allowed to be
		store.Fail("watch", nil)
		elapse(10 * time.Second)
		expectReceived(t, w, "ADDED a/two@3")
		if requests := store.Requests(); requests["list"] != 0 {
			t.Errorf("the storage got %v, want no list", requests)
		}
	}, func(config *cacher.Config) { config.ConsistencyCheckInterval = -1 })
}

// relists runs f, which makes the source and the cache part, and checks that
// the cache finds out, ends its watchers, and has the storage's state again.
func relists(t *testing.T, f func(*memstore.Store), change ...func(*cacher.Config)) {
	t.Helper()
	inBubble(t, func() *memstore.Store {
		return newStore(poddata.Pod("a/one"), poddata.Pod("a/two"), poddata.Pod("a/three"))
	}, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		live := watchPods(t, c, "/pods/", "4")
		parked := watchPods(t, c, "/pods/", "0", withBookmarks)
		synctest.Wait()
		f(store)
		elapse(2 * time.Minute)
		for _, w := range []*podWatch{live, parked} {
			lines := received(w)
			if len(lines) == 0 || lines[len(lines)-1] != "closed" {
				t.Errorf("a watcher got %q and was not ended", lines)
			}
			for _, l := range lines {
				if strings.Contains(l, "never") {
					t.Errorf("a watcher got %q", l)
				}
			}
		}
		var want []string
		for _, object := range store.Objects() {
			pod := object.(*example.Pod)
			want = append(want, pod.Namespace+"/"+pod.Name)
		}
		rv, _ := store.GetCurrentResourceVersion(t.Context())
		expectList(t, c, "/pods/", "", fmt.Sprintf("%s@%d", strings.Join(sorted(want), " "), rv))
		// From there on events come again.
		w := watchPods(t, c, "/pods/", "")
		for range store.Objects() {
			w.next()
		}
		last := put(store, poddata.Pod("b/new"))
		expectReceived(t, w, fmt.Sprintf("ADDED b/new@%d", last))
	}, change...)
}

// REGRESSIONS 7: the source skips events that it has compacted. What can be
// told from the events that follow is told, and deleted objects don't linger.
func TestSkippedEventsAreDetected(t *testing.T) {
	t.Run("a deletion, then the key is created", func(t *testing.T) {
		relists(t, func(store *memstore.Store) {
			release := store.Hold()
			store.Remove("/pods/a/one")
			store.SkipEvents()
			put(store, poddata.Pod("a/one"))
			release()
		})
	})
	t.Run("a creation, then the key is modified", func(t *testing.T) {
		relists(t, func(store *memstore.Store) {
			release := store.Hold()
			put(store, poddata.Pod("a/four"))
			store.SkipEvents()
			put(store, poddata.Pod("a/four"))
			release()
		})
	})
	t.Run("a creation, then the key is deleted", func(t *testing.T) {
		relists(t, func(store *memstore.Store) {
			release := store.Hold()
			put(store, poddata.Pod("a/four"))
			store.SkipEvents()
			store.Remove("/pods/a/four")
			release()
		})
	})
	t.Run("the watch is told that its version is compacted", func(t *testing.T) {
		relists(t, func(store *memstore.Store) {
			release := store.Hold()
			store.Remove("/pods/a/one")
			store.Remove("/pods/a/two")
			store.BreakWatches(nil)
			store.Compact(6)
			release()
		})
	})
}

// REGRESSIONS 8: a deletion of what the cache does not have is no nil object
// to anyone but a reason to list anew.
func TestDeletionWithoutPrevious(t *testing.T) {
	relists(t, func(store *memstore.Store) {
		never := poddata.Pod("a/never")
		never.ResourceVersion = "5"
		store.Inject(watch.Event{Type: watch.Deleted, Object: never})
	})
}

// REGRESSIONS 9 and 10: nothing after an event that could not be applied is
// delivered, and the cache does not go on as if it had been.
func TestEventThatCannotBeApplied(t *testing.T) {
	broken := true
	relists(t, func(store *memstore.Store) {
		put(store, poddata.Pod("a/poison", "poison=yes"))
		put(store, poddata.Pod("a/after"))
		synctest.Wait()
		store.Remove("/pods/a/poison")
		broken = false
	}, func(config *cacher.Config) {
		config.GetAttrsFunc = func(o runtime.Object) (l labels.Set, f fields.Set, err error) {
			if l, f, err = poddata.Attrs(o); l["poison"] != "" && broken {
				return nil, nil, errors.New("no attributes")
			}
			return l, f, err
		}
	})
}

// REGRESSIONS 15: a progress notification that overtakes an event of its
// revision must not count: the event that comes late is not lost.
func TestEventAfterItsProgress(t *testing.T) {
	relists(t, func(store *memstore.Store) {
		release := store.Hold()
		late := poddata.Pod("a/late")
		rv := put(store, late)
		bookmark := &example.Pod{}
		bookmark.ResourceVersion = fmt.Sprint(rv)
		store.Inject(watch.Event{Type: watch.Bookmark, Object: bookmark})
		synctest.Wait()
		release()
	})
}

// REGRESSIONS 17: a storage that was restored from a backup has another
// history: watchers end, and everything is built anew.
func TestRestoredBackup(t *testing.T) {
	t.Run("found by a consistent read", func(t *testing.T) { restoreBackup(t, 10*time.Second) })
	t.Run("found by the cache itself", func(t *testing.T) { restoreBackup(t, 2*time.Minute) })
}

func restoreBackup(t *testing.T, wait time.Duration) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/two"))
		put(store, poddata.Pod("a/lost"))
		w := watchPods(t, c, "/pods/", "2")
		expectReceived(t, w, "ADDED a/two@3", "ADDED a/lost@4")
		store.Restore(3)
		elapse(wait)
		if wait < time.Minute {
			// A consistent read finds out before the cache does by itself. It
			// is refused, or served from the restored state.
			pods := &example.PodList{}
			err := c.GetList(t.Context(), "/pods/", everything(""), pods)
			if err != nil && !apierrors.IsTooManyRequests(err) {
				t.Errorf("got %v", err)
			}
			elapse(10 * time.Second)
		}
		expectReceived(t, w, "closed")
		expectList(t, c, "/pods/", "", "a/one a/two@3")
		again := watchPods(t, c, "/pods/", "3")
		put(store, poddata.Pod("a/other"))
		expectReceived(t, again, "ADDED a/other@4")
	})
}

// REGRESSIONS 12: events are applied in the order of their versions; one that
// goes back is refused.
func TestEventsOutOfOrder(t *testing.T) {
	relists(t, func(store *memstore.Store) {
		put(store, poddata.Pod("a/four"))
		put(store, poddata.Pod("a/five"))
		synctest.Wait()
		never := poddata.Pod("a/never")
		never.ResourceVersion = "5"
		store.Inject(watch.Event{Type: watch.Added, Object: never})
	})
}

// REGRESSIONS 3: a watch that registers while the cache lists anew is closed,
// refused or served whole.
func TestWatchDuringRelist(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		open := store.Gate("watch")
		store.BreakWatches(apierrors.NewResourceExpired("compacted"))
		put(store, poddata.Pod("a/two")) // nobody is told of it
		elapse(10 * time.Second)
		w := watchPods(t, c, "/pods/", "2")
		synctest.Wait()
		open()
		elapse(10 * time.Second)
		expectReceived(t, w, "closed")
		watchPods(t, c, "/pods/", "2").expect("ERROR 410 Expired")
		expectReceived(t, watchPods(t, c, "/pods/", "0"), "ADDED a/one@2", "ADDED a/two@3")
	})
}

// An event that the storage can't deliver: nobody gets a later one, the
// watchers are told what the storage says, and the cache recovers by itself
// once the object was repaired or removed.
func TestEventThatCannotBeDelivered(t *testing.T) {
	count, sum := counted(t)
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		synctest.Wait()
		corrupt := apierrors.NewInternalError(errors.New(`"/pods/a/corrupt" can't be decoded`))
		release := store.Corrupt(corrupt)
		put(store, poddata.Pod("a/corrupt"))
		put(store, poddata.Pod("a/after"))
		elapse(time.Minute)
		expectReceived(t, w, "ERROR 500 InternalError", "closed")
		again := watchPods(t, c, "/pods/", "2")
		elapse(time.Minute)
		expectReceived(t, again, "ERROR 500 InternalError", "closed")
		expectList(t, c, "/pods/", "0", "a/one@2")
		if last := c.Status().LastError; last == nil || !strings.Contains(last.Message, "/pods/a/corrupt") {
			t.Errorf("the status does not name the object: %+v", last)
		}
		release()
		elapse(time.Minute)
		expectList(t, c, "/pods/", "0", "a/after a/corrupt a/one@4")
		if sum("storage_undeliverable_total") < 2 {
			t.Errorf("%v undeliverable events are counted", sum("storage_undeliverable_total"))
		}
	}, count)
}

// With the carry-over, a list tells watchers the difference: of what happened
// meanwhile they see the outcome.
func TestWatchersCarriedOverRelist(t *testing.T) {
	inBubble(t, func() *memstore.Store {
		return newStore(poddata.Pod("a/changed"), poddata.Pod("a/deleted"), poddata.Pod("a/same"), poddata.Pod("a/recreated"))
	}, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "5")
		resumed := watchPods(t, c, "/pods/", "5", selecting("color=red", ""))
		synctest.Wait()
		release := store.Hold()
		put(store, poddata.Pod("a/changed"))              // 6
		put(store, poddata.Pod("a/changed", "color=red")) // 7
		store.Remove("/pods/a/deleted")                   // 8
		put(store, poddata.Pod("a/came"))                 // 9
		put(store, poddata.Pod("a/went"))                 // 10
		store.Remove("/pods/a/went")                      // 11
		store.Remove("/pods/a/recreated")                 // 12
		put(store, poddata.Pod("a/recreated"))            // 13
		store.Touch()                                     // 14
		store.BreakWatches(nil)
		store.Compact(14)
		release()
		elapse(time.Minute)
		expectReceived(t, w, "MODIFIED a/changed@7", "ADDED a/came@9", "MODIFIED a/recreated@13", "DELETED a/deleted@14")
		expectReceived(t, resumed, "ADDED a/changed@7")
		put(store, poddata.Pod("a/after"))
		expectReceived(t, w, "ADDED a/after@15")
		// Versions in between were not seen, so nobody can resume from one.
		watchPods(t, c, "/pods/", "10").expect("ERROR 410 Expired")
		watchPods(t, c, "/pods/", "5").expect("MODIFIED a/changed@7")
		watchPods(t, c, "/pods/", "14").expect("ADDED a/after@15")
	}, func(config *cacher.Config) { config.CarryWatchersOverRelist = true })
}

// ParkedTimeout ends a watch that is parked for too long.
func TestParkedTimeout(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "1")
		synctest.Wait()
		burst(store, 30)
		elapse(9 * time.Second)
		if n := len(c.Status().Watchers); n != 1 {
			t.Fatalf("%d watchers before the timeout", n)
		}
		elapse(2 * time.Second)
		lines := received(w)
		if lines[len(lines)-1] != "closed" || len(lines) >= 30 {
			t.Errorf("got %d lines, the last one %q", len(lines), lines[len(lines)-1])
		}
	}, func(config *cacher.Config) { config.ParkedTimeout = 10 * time.Second })
}
