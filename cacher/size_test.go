// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Regression 110: WindowBytes bounds what the window keeps in memory, also of
// types that have no serialization to ask for their size, as internal ones:
// the Pods of this test are of such a type.
func TestWindowBytesBoundsWhatEventsTake(t *testing.T) {
	const (
		size    = 200_000
		bound   = 4 << 20
		patches = 300
	)
	store := newStore(poddata.Pod("ns/large"))
	c := start(t, store, func(c *cacher.Config) { c.WindowBytes = bound })
	w := watchPods(t, c, "/pods/", "0")
	w.next()
	for i := range patches {
		pod := poddata.Pod("ns/large")
		pod.Annotations = map[string]string{fmt.Sprint("patch-", i): strings.Repeat("x", size)}
		put(store, pod)
		w.next() // so that the event is dispatched, and may leave the window
	}
	until(t, "the window is within its bound", func() bool { return c.Status().WindowBytes <= bound })
	status := c.Status()
	assert.LessOrEqual(t, status.WindowEvents*size, bound, "the window has %d events with %d bytes each", status.WindowEvents, size)
	assert.NotZero(t, status.WindowEvents, "the window has no events")
	assert.GreaterOrEqual(t, status.ObjectBytes, int64(size), "the cached object is said to take %d bytes; one string of it takes %d", status.ObjectBytes, size)
}

// Regression 106: while the dispatcher is stuck, here because it waits for a
// watcher that does not read, the window takes no more than its ceiling. Those
// who have lost events are told, those who come later are served, and the cache
// goes on.
func TestWindowHasACeiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events, size, most = 64, 1 << 20, 20 << 20
		store := newStore(poddata.Pod("a/one"))
		c := start(t, store, func(c *cacher.Config) {
			c.WindowBytes, c.WatchBuffer = 1<<20, 2
			c.DispatchBudget = time.Minute
		})
		reads := watchPods(t, c, "/pods/", "2")
		silent := watchPods(t, c, "/pods/b/", "2")
		synctest.Wait()
		for range 4 {
			put(store, poddata.Pod("b/one")) // 3 to 6: the dispatcher waits at 5
			synctest.Wait()
		}
		reads.expect("ADDED b/one@3", "MODIFIED b/one@4")
		for range events {
			pod := poddata.Pod("a/one")
			pod.Annotations = map[string]string{"large": strings.Repeat("x", size)}
			put(store, pod)
			synctest.Wait()
		}
		status := c.Status()
		assert.LessOrEqual(t, status.WindowBytes, int64(most), "the bytes in the window, of %d events", status.WindowEvents)
		assert.GreaterOrEqual(t, status.WindowEvents, 10, "the events in the window, of %d bytes", status.WindowBytes)
		assert.EqualValues(t, 6+events, status.ResourceVersion)
		last := fmt.Sprint(status.ResourceVersion)
		late := watchPods(t, c, "/pods/", last)
		elapse(5 * time.Minute) // in the bubble: until the budget is spent
		for got := reads.next(); got != "ERROR 410 Expired"; got = reads.next() {
			require.True(t, strings.HasPrefix(got, "MODIFIED"), "got %s", got)
		}
		reads.expect("closed")
		silent.expect("ADDED b/one@3", "MODIFIED b/one@4")
		put(store, poddata.Pod("a/two"))
		late.expect(fmt.Sprintf("ADDED a/two@%d", 7+events))
		synctest.Wait()
		assert.LessOrEqual(t, c.Status().WindowBytes, int64(4<<20), "the bytes in the window after the big event")
	})
}
