// SPDX-License-Identifier: Apache-2.0

//go:build !invariants

package memory

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-watchcache/watchcache/internal/cachetest"
	"github.com/kube-watchcache/watchcache/internal/race"
)

// heapOf returns the heap in use, in bytes.
func heapOf() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// large is pods whose maps take more memory than anything that is kept beside an object.
func large(n int) (objs []apiruntime.Object) {
	for i := range n {
		object := pod("a/"+strconv.Itoa(i), "1")
		object.Annotations = map[string]string{}
		for j := range 40 {
			object.Annotations[strconv.Itoa(j)] = "annotation"
		}
		objs = append(objs, object)
	}
	return objs
}

// An object costs at most 200 bytes in the store, beside itself, and a Cacher over
// the store refers to the same object. With the tag invariants, a Cacher keeps copies.
func TestMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	const n = 20_000
	empty := heapOf()
	objs := large(n)
	bare := heapOf() - empty
	s := open(t)
	require.NoError(t, s.Replace(t.Context(), objs))
	store := heapOf() - empty - 2*bare
	require.LessOrEqual(t, store/n, int64(200))
	runtime.KeepAlive(objs)
	before := heapOf()
	c := cachetest.Start(t, s)
	cached := heapOf() - before
	require.Less(t, cached/n, bare/n/2, "the objects are there twice")
	t.Logf("an object of %d bytes costs %d more in the store, %d more in a Cacher over it", bare/n, store/n, cached/n)
	runtime.KeepAlive(c)
}
