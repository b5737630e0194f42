// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// A list that has begun before a reader finds that the storage has gone back is the
// one that was ordered: the storage is not listed again after it, and watches go on.
func TestListUnderWayIsTheOneThatIsOrdered(t *testing.T) {
	inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("a/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		for range 5 {
			put(store, poddata.Pod("a/one")) // up to 7
		}
		expectList(t, c, "/pods/", "", "a/one@7")
		open := store.Gate("list")
		store.BreakWatches(apierrors.NewResourceExpired("compacted"))
		elapse(time.Minute)
		store.Restore(2)
		read := goGet(t.Context(), c, "/pods/a/one", "")
		elapse(time.Second)
		expectRead(t, read, "a/one@2")
		before := store.Requests()["list"]
		open()
		synctest.Wait()
		require.True(t, c.Ready(), "the cache is not ready")
		w := watchPods(t, c, "/pods/", "2")
		elapse(time.Minute)
		put(store, poddata.Pod("a/two"))
		expectReceived(t, w, "ADDED a/two@3")
		assert.Equal(t, before, store.Requests()["list"], "lists of the storage since")
	}, func(c *cacher.Config) { c.ConsistencyCheckInterval = -1; c.List(true) })
}
