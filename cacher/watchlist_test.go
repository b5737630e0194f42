// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// REGRESSIONS 55: watch-lists hold nobody up, however many begin and whether or
// not their clients read: events are applied and reach those who read.
func TestWatchListsHoldUpNobody(t *testing.T) {
	inBubble(t, manyPods, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		live := watchPods(t, c, "/pods/", "101")
		synctest.Wait()
		for i := range 200 {
			watchPods(t, c, "/pods/", "0", streaming)
			rv := put(store, poddata.Pod("b/one"))
			if i == 0 {
				expectReceived(t, live, fmt.Sprintf("ADDED b/one@%d", rv))
				continue
			}
			expectReceived(t, live, fmt.Sprintf("MODIFIED b/one@%d", rv))
		}
		n := len(c.Status().Watchers)
		assert.Equal(t, 201, n, "%d watchers are open", n)
	})
}

// REGRESSIONS 64: while servers restart one after the other, the client of a
// quiet resource keeps a position that the next server knows: bookmarks bring
// it past the list that the next server has begun with.
func TestRollingRestartOfAQuietResource(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		position, servers := "2", []*cacher.Cacher{c}
		for range 3 {
			w := watchPods(t, servers[len(servers)-1], "/pods/", position, withBookmarks)
			for range 50 {
				store.Touch()
			}
			servers = append(servers, start(t, store)) // another one restarts
			store.Touch()
			require.NoError(t, store.RequestWatchProgress(t.Context())) // as etcd reports by itself now and then
			elapse(cacher.DefaultBookmarkInterval + 2*time.Second)
			lines := received(w)
			require.NotEmpty(t, lines, "no bookmark comes")
			_, err := fmt.Sscanf(lines[len(lines)-1], "BOOKMARK@%s", &position)
			require.NoError(t, err, "got %q", lines)
			servers[len(servers)-2].Stop()
		}
		w := watchPods(t, servers[len(servers)-1], "/pods/", position)
		last := put(store, poddata.Pod("a/two"))
		expectReceived(t, w, fmt.Sprintf("ADDED a/two@%d", last))
		servers[len(servers)-1].Stop()
	})
}
