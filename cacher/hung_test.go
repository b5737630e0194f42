// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 109: the cache's own watch hangs, on an etcd member that is
// paused, cut off from its peers or behind a silent connection. The cache
// notices within a second, because reads wait in vain, and opens the watch
// elsewhere: the reads are served, watchers see every event once, nothing is
// listed.
func TestHungWatchIsOpenedElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		hang   memstore.Hang
		within time.Duration
	}{
		"it is silent":                        {memstore.Hang{}, time.Second},
		"it reports no progress":              {memstore.Hang{Stale: true}, time.Second},
		"it does not end when it is given up": {memstore.Hang{Stubborn: true}, time.Second},
		"the next watch hangs, too":           {memstore.Hang{Next: 1}, 2 * time.Second},
		"the next two hang and do not end":    {memstore.Hang{Next: 2, Stubborn: true}, 10 * time.Second}, // storage counts as silent for 5 s
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
				w := watchPods(t, c, "/pods/", "2")
				put(store, poddata.Pod("a/seen"))
				expectReceived(t, w, "ADDED a/seen@3")
				release := store.HangWatches(tc.hang)
				defer release()
				put(store, poddata.Pod("a/hidden"))
				put(store, poddata.Pod("a/one"))
				r := goList(t.Context(), c, "")
				elapse(tc.within)
				synctest.Wait()
				require.False(t, r.under(), "a consistent LIST is not served within %v", tc.within)
				assert.NoError(t, r.err, "a consistent LIST")
				put(store, poddata.Pod("a/after"))
				expectReceived(t, w, "ADDED a/hidden@4", "MODIFIED a/one@5", "ADDED a/after@6")
				expectList(t, c, "/pods/", "", "a/after a/hidden a/one a/seen@6")
				lists := store.Requests()["list"]
				if tc.hang.Next < 2 {
					assert.Zero(t, lists, "storage was listed %d times", lists)
				}
			})
		})
	}
}

// A watch is not given up while storage does not tell its version: there is
// nowhere to open another one.
func TestHungWatchIsKeptWhileStorageIsAway(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		release := store.HangWatches(memstore.Hang{})
		put(store, poddata.Pod("a/two"))
		r := goList(t.Context(), c, "")
		synctest.Wait() // storage has told that it is ahead
		open := store.Gate("version")
		for range 60 {
			_ = goList(t.Context(), c, "")
			elapse(time.Second)
		}
		n := store.Requests()["watch"]
		assert.Equal(t, 1, n, "%d watches were opened while storage was away", n)
		release()
		open()
		elapse(5 * time.Second)
		assert.False(t, r.under(), "a read is not answered")
		expectList(t, c, "/pods/", "", "a/one a/two@3")
	})
}

// A storage that is healthy but slow is not flooded with watches: the cache is
// more patient each time that it gave one up in vain.
func TestSlowStorageIsNotFlooded(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		release := store.HangWatches(memstore.Hang{Next: 1000})
		put(store, poddata.Pod("a/two"))
		for range 60 {
			_ = goList(t.Context(), c, "")
			elapse(time.Second)
		}
		n := store.Requests()["watch"]
		assert.GreaterOrEqual(t, n, 4, "the watches that were opened in a minute")
		assert.LessOrEqual(t, n, 20, "the watches that were opened in a minute")
		release()
		elapse(6 * time.Minute) // until storage no longer counts as silent
		expectList(t, c, "/pods/", "", "a/one a/two@3")
		// A watch that is merely quiet is left alone, however long.
		before := store.Requests()["watch"]
		for range 60 {
			store.Touch()
			assert.NoError(t, c.GetList(t.Context(), "/pods/", everything(""), &example.PodList{}))
			elapse(10 * time.Second)
		}
		n = store.Requests()["watch"]
		assert.Equal(t, before, n, "%d watches were opened over a quiet resource", n-before)
	})
}
