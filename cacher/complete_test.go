// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Regression 91: the storage's watch breaks in the middle of a revision, and
// goes on there: nothing is lost, comes twice or is listed again; whatever kind
// of event came first.
func TestStorageWatchBreaksInTheMiddleOfARevision(t *testing.T) {
	unavailable := apierrors.NewServiceUnavailable("for the test")
	for parts := range 4 {
		for name, err := range map[string]*apierrors.StatusError{"error": unavailable, "end": nil} {
			t.Run(fmt.Sprintf("%s after %d events", name, parts), func(t *testing.T) {
				store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"), poddata.Pod("a/three"))
				c := start(t, store)
				w := watchPods(t, c, "/pods/", "4")
				release := store.HoldRevision(5, parts)
				before := store.Requests()
				store.Txn(
					memstore.Write{Key: "/pods/a/four", Object: poddata.Pod("a/four")},
					memstore.Write{Key: "/pods/a/two"},
					memstore.Write{Key: "/pods/a/one", Object: poddata.Pod("a/one")},
				)
				events := []string{"ADDED a/four@5", "DELETED a/two@5", "MODIFIED a/one@5"}
				w.expect(events[:parts]...)
				store.BreakWatches(err)
				require.NoError(t, store.AwaitRequests(testContext(t), "watch", before["watch"]+1))
				release()
				w.expect(events[parts:]...)
				put(store, poddata.Pod("a/one"))
				w.expect("MODIFIED a/one@6")
				expectList(t, c, "/pods/", "5", "a/four a/one a/three@5", exactly)
				assert.Equal(t, before["list"], store.Requests()["list"], "storage was listed")
				if err != nil {
					assert.NotNil(t, c.Status().LastError, "the break is not told")
				}
			})
		}
	}
}

// A storage that tells progress only when asked is asked when nothing has
// followed an event for a while, so that reads of any age, and bookmarks, don't
// stay one revision behind on a quiet resource. Then it is left alone.
func TestQuietResourceIsShownWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(poddata.Pod("a/one"))
		store.EndRevisions(false)
		c := start(t, store, func(c *cacher.Config) { c.BookmarkInterval = time.Second })
		w := watchPods(t, c, "/pods/", "2", withBookmarks)
		elapse(10 * time.Second) // in the bubble: nothing waits
		for range len(w.ResultChan()) {
			w.next()
		}
		before := store.Requests()["progress"]
		put(store, poddata.Pod("a/two"))
		w.expect("ADDED a/two@3")
		elapse(time.Second)
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
		asked := store.Requests()["progress"] - before
		assert.GreaterOrEqual(t, asked, 1, "how often progress was asked for")
		assert.LessOrEqual(t, asked, 2, "how often progress was asked for")
		elapse(time.Minute)
		w.expect("BOOKMARK@3")
		assert.Equal(t, asked, store.Requests()["progress"]-before, "progress was requested again on a quiet resource")

		// A busy one completes itself; only for bookmarks its end is asked for,
		// once a second.
		before = store.Requests()["progress"]
		for range 50 {
			put(store, poddata.Pod("a/one"))
			elapse(50 * time.Millisecond)
		}
		assert.LessOrEqual(t, store.Requests()["progress"]-before, 4, "the requests for progress on a busy resource")
		elapse(time.Second)
		expectList(t, c, "/pods/", "0", "a/one a/two@53")
	})
}

// Many transactions of two writes each, and readers that begin at any time:
// each state that a client comes to by a list or initial events, and goes on
// from by a watch, has both writes or none.
func TestTransactionsOnTheWay(t *testing.T) {
	const transactions = 300
	store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
	c := start(t, store)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range transactions {
			store.EndRevisions(i%3 > 0)
			store.Txn(
				memstore.Write{Key: "/pods/a/one", Object: poddata.Pod("a/one")},
				memstore.Write{Key: "/pods/a/two", Object: poddata.Pod("a/two")},
			)
			if i%10 == 0 {
				store.BreakWatches(nil)
			}
		}
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		pods := &example.PodList{}
		require.NoError(t, c.GetList(ctx, "/pods/", everything("0"), pods))
		one, two := pods.Items[0].ResourceVersion, pods.Items[1].ResourceVersion
		if one != two {
			require.Equal(t, "3", pods.ResourceVersion, "one is at %s, two at %s in the list at %s", one, two, pods.ResourceVersion)
		}
	}
	expectReached(t, c, transactions+3)
	n := store.Requests()["list"]
	assert.Zero(t, n, "%d lists", n)
}

// slowStorage is a storage that takes longer to decode its state than its
// compaction interval: by the time that the state is there, its version is
// compacted. While it streams the state it notices itself.
type slowStorage struct {
	*memstore.Store
	streams bool // it manages to stream the state, and not what comes after
	fills   atomic.Int32
}

func (s *slowStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := s.Store.GetList(ctx, key, opts, into)
	s.decode()
	return err
}

func (s *slowStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil
	w, err := s.Store.Watch(ctx, key, opts)
	if err != nil || !initial {
		return w, err
	}
	decoded := false
	return watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		end := event.Type == watch.Bookmark
		switch {
		case !decoded && (!s.streams || end):
			decoded = true
			s.decode()
			if end {
				return event, true
			}
		case !decoded:
			return event, true
		}
		status := apierrors.NewResourceExpired("compacted").Status()
		return watch.Event{Type: watch.Error, Object: &status}, true
	}), nil
}

// decode takes its time, in which the resource changes and is compacted.
func (s *slowStorage) decode() {
	s.fills.Add(1)
	put(s.Store, poddata.Pod("a/changing"))
	rv := s.Touch()
	<-time.After(10 * time.Second) // watches that are open have come so far
	s.Compact(rv)
}

// REGRESSIONS 56: to decode the state takes longer than the storage's
// compaction interval. The cache becomes ready all the same, follows the
// storage from there on, and has filled itself a few times at most.
func TestStateThatTakesLongerThanACompaction(t *testing.T) {
	for name, streams := range map[string]bool{"the stream expires": false, "what comes after the stream expires": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowStorage{Store: newStore(poddata.Pod("a/one")), streams: streams}
				config := podConfig(store)
				config.ConsistencyCheckInterval = -1
				c, err := cacher.New(config)
				require.NoError(t, err)
				defer c.Stop()
				elapse(2 * time.Minute)
				require.True(t, c.Ready(), "the cache is not ready")
				n := store.fills.Load()
				assert.LessOrEqual(t, n, int32(4), "the cache was filled %d times", n)
				before := store.fills.Load()
				w := watchPods(t, c, "/pods/", "")
				w.next()
				w.next()
				for range 10 {
					rv := put(store.Store, poddata.Pod("a/after"))
					event := w.next()
					assert.Equal(t, fmt.Sprint(rv), event[len(event)-len(fmt.Sprint(rv)):], "got %q, want version %d", event, rv)
					elapse(time.Minute)
				}
				n = store.fills.Load() - before
				assert.Zero(t, n, "the cache was filled %d times more", n)
			})
		})
	}
}
