// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// Regression 21: an object that storage has under a key that is not that of its
// name is served under its name, and storage is not listed over and over.
func TestMisfiledObject(t *testing.T) {
	meters, metric := metered(t)
	misfile := func(store *memstore.Store, attrs ...string) {
		store.Put("/pods/a/misfiled", poddata.Pod("a/one", attrs...))
	}
	inBubble(t, func() *memstore.Store { store := newStore(); misfile(store); return store }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
		expectList(t, c, "/pods/", "", "a/one@2")
		misfile(store, "x=y")
		expectList(t, c, "/pods/", "", "a/one@3", selecting("x=y", ""))
		elapse(time.Hour)
		store.Remove("/pods/a/misfiled")
		expectList(t, c, "/pods/", "", "@4")
		n := metric("relists_total")
		assert.EqualValues(t, 1, n, "storage was listed %v times", n)
	}, meters)
}

// Regression 21, at its worst: two keys hold objects of one name. The cache
// reports this and goes on, whatever happens to the two: it lists again no more
// often than needed, and ends up with the objects of storage.
func TestTwoKeysOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		meters, metric := metered(t)
		store := newStore(poddata.Pod("a/one"), poddata.Pod("a/two"))
		twin := func() { store.Put("/pods/a/twin", poddata.Pod("a/one", "twin=yes")) }
		twin()
		c := start(t, unstreamed{store}, meters)
		defer c.Stop()
		last := c.Status().LastError
		require.NotNil(t, last, "the status tells no error")
		assert.Contains(t, last.Message, "share a key")
		expectList(t, c, "/pods/", "", "a/one a/two@4")
		const changes = 20
		for range changes {
			put(store, poddata.Pod("a/one"))
			twin()
			elapse(10 * time.Second)
		}
		store.Remove("/pods/a/twin")
		elapse(10 * time.Second)
		put(store, poddata.Pod("a/one"))
		elapse(10 * time.Second)
		pod := &example.Pod{}
		err := c.Get(t.Context(), "/pods/a/one", storage.GetOptions{}, pod)
		require.NoError(t, err)
		assert.Empty(t, pod.Labels["twin"], "the labels are %v", pod.Labels)
		expectList(t, c, "/pods/", "", "a/one a/two@46")
		n := metric("relists_total")
		assert.LessOrEqual(t, n, float64(2+2*changes), "storage was listed %v times for %d changes", n, 2*changes+2)
		before := metric("relists_total")
		elapse(time.Hour)
		n = metric("relists_total")
		assert.Equal(t, before, n, "storage was listed %v times on a quiet resource", n-before)
		t.Logf("storage was listed %v times for %d changes", before, 2*changes+2)
	})
}
