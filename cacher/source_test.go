// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
				requests := store.Requests()
				assert.Equal(t, 6, requests["watch"], "watches that the storage got")
				assert.Zero(t, requests["list"], "lists that the storage got")
				assert.NotNil(t, c.Status().LastError, "the status does not tell the error")
			})
		})
	}
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
			require.NotEmpty(t, lines, "a watcher got nothing and was not ended")
			assert.Equal(t, "closed", lines[len(lines)-1], "a watcher got %q and was not ended", lines)
			for _, l := range lines {
				assert.NotContains(t, l, "never", "a watcher got %q", l)
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

// REGRESSIONS 7: the source skips events that it has compacted. The events that
// follow show some of the missed changes, and deleted objects don't linger.
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
// to anyone but a reason to list again.
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
		release := store.Hold()
		put(store, poddata.Pod("a/poison", "poison=yes"))
		for i := range 5 { // some of them are on their way already when it fails
			put(store, poddata.Pod(fmt.Sprintf("a/never-%d", i)))
		}
		release()
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

// REGRESSIONS 9: until everything was listed again after an event that could not
// be applied, no progress that storage reports makes the cache fresh: a
// consistent read waits.
func TestNoProgressAfterAnEventThatCannotBeApplied(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for _, kind := range []string{"watch", "list"} {
			t.Cleanup(store.Gate(kind))
		}
		release := store.Hold()
		put(store, poddata.Pod("a/poison", "poison=yes"))
		put(store, poddata.Pod("a/two"))
		require.NoError(t, store.RequestWatchProgress(t.Context()))
		release()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		pods := &example.PodList{}
		assert.Error(t, c.GetList(ctx, "/pods/", everything(""), pods), "a consistent read without what could not be applied got %d pods at %s", len(pods.Items), pods.ResourceVersion)
	}, func(config *cacher.Config) {
		config.GetAttrsFunc = func(o runtime.Object) (labels.Set, fields.Set, error) {
			if l, f, err := poddata.Attrs(o); l["poison"] == "" {
				return l, f, err
			}
			return nil, nil, errors.New("no attributes")
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
		expectList(t, c, "/pods/", "0", "a/one@2")
		last := c.Status().LastError
		require.NotNil(t, last, "the status tells no error")
		assert.Contains(t, last.Message, "InternalError")
		release()
		elapse(time.Minute)
		expectList(t, c, "/pods/", "0", "a/after a/corrupt a/one@4")
		assert.GreaterOrEqual(t, sum("storage_undeliverable_total"), float64(2), "the undeliverable events that are counted")
	}, count)
}
