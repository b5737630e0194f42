// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A waiting read has no goroutine but its caller's, and holds up nobody:
// events are applied and delivered, and reads of what is there are served.
// (Regression 35.)
func TestWaitingReadsHoldUpNobody(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		w := watchPods(t, c, "/pods/", "2")
		expectReceived(t, w)
		const readers = 500
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancel(t.Context())
		var reads []*reading
		for i := range readers {
			reads = append(reads, goList(ctx, c, fmt.Sprint(1000+i)))
		}
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine()-before, readers+2, "the goroutines of %d readers", readers)
		put(store, poddata.Pod("a/two"))
		expectReceived(t, w, "ADDED a/two@3")
		expectList(t, c, "/pods/", "0", "a/one a/two@3")
		expectList(t, c, "/pods/", "", "a/one a/two@3")
		cancel()
		synctest.Wait()
		for _, r := range reads {
			require.False(t, r.under(), "a cancelled read goes on")
			require.Error(t, r.err, "a cancelled read got %q", r.got)
		}
	})
}

// Each version wakes those who wait for it or less, however they came and
// whoever has left.
func TestVersionsWakeTheirReaders(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore() }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		wanted := []int{7, 3, 5, 5, 9, 2, 8, 4, 6, 3}
		reads := map[int][]*reading{}
		for _, rv := range wanted {
			reads[rv] = append(reads[rv], goList(t.Context(), c, fmt.Sprint(rv)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		for _, rv := range wanted {
			goList(ctx, c, fmt.Sprint(rv))
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		for rv := 2; rv <= 9; rv++ {
			put(store, poddata.Pod("a/one"))
			synctest.Wait()
			for at, group := range reads {
				for _, r := range group {
					assert.NotEqual(t, at <= rv, r.under(), "whether a read that waits for %d goes on at %d", at, rv)
				}
			}
		}
	})
}
