// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 78: an etcd that tells of a change twice. Watchers are told once,
// or have to list again; the state is right in either case.
func TestEventThatComesTwice(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		put(store, poddata.Pod("a/two"))
		synctest.Wait()
		store.Inject(watch.Event{Type: watch.Added, Object: store.Objects()["/pods/a/two"]})
		elapse(10 * time.Second)
		put(store, poddata.Pod("a/three"))
		elapse(10 * time.Second)
		expectOnceEach(t, w, "ADDED a/two@3", "ADDED a/three@4")
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
	})
}

// REGRESSIONS 73 and 72: a watch that was opened after a resourceVersion gets
// events from before it, as an etcd sends that was restored or lags behind.
// An event that was seen does not come again, and nothing goes back.
func TestOldEventsAfterResume(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		put(store, poddata.Pod("a/two", "v=1"))
		old := store.Objects()["/pods/a/two"]
		put(store, poddata.Pod("a/two", "v=2"))
		put(store, poddata.Pod("a/three"))
		synctest.Wait()
		store.BreakWatches(nil)
		elapse(10 * time.Second)
		store.Inject(watch.Event{Type: watch.Added, Object: old})
		elapse(10 * time.Second)
		put(store, poddata.Pod("a/four"))
		elapse(10 * time.Second)
		expectOnceEach(t, w, "ADDED a/two@3", "MODIFIED a/two@4", "ADDED a/three@5", "ADDED a/four@6")
		expectList(t, c, "/pods/", "", "a/four a/one a/three a/two@6")
	})
}

// pausedOnce answers one version request with what was true before: what an
// etcd can do whose process was stopped at the wrong moment.
type pausedOnce struct {
	*memstore.Store
	old chan uint64
}

func (s pausedOnce) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rv, err := s.Store.GetCurrentResourceVersion(ctx)
	select {
	case old := <-s.old:
		return old, err
	default:
		return rv, err
	}
}

// REGRESSIONS 74 and 77: storage answers a consistent read with an old
// version. Nobody is served a state older than one that was seen before.
func TestOldVersionInAnAnswer(t *testing.T) {
	var storage pausedOnce
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		put(store, poddata.Pod("a/two"))
		put(store, poddata.Pod("a/three"))
		synctest.Wait()
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
		storage.old <- 2
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
		elapse(10 * time.Second) // whatever the cache makes of it, it heals
		expectList(t, c, "/pods/", "", "a/one a/three a/two@4")
	}, func(config *cacher.Config) {
		storage = pausedOnce{config.Storage.(*memstore.Store), make(chan uint64, 1)}
		config.Storage = storage
	})
}

// expectOnceEach wants the lines in order and once each: all of them, or the
// first ones and then the watch's end.
func expectOnceEach(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	got := received(w)
	for i, line := range got {
		ended := line == "closed" || strings.HasPrefix(line, "ERROR")
		if ended {
			t.Logf("the watch was ended: %q", got)
			return
		}
		require.Less(t, i, len(want), "got %q", got)
		require.Equal(t, want[i], line, "got %q", got)
	}
	assert.Len(t, got, len(want), "want %q", want)
}
