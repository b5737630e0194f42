// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Count returns how many elements Range yields.
func TestCount(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := randomSnapshot(rt, t, 200)
		for range rapid.IntRange(1, 30).Draw(rt, "counts") {
			if rapid.IntRange(0, 9).Draw(rt, "all") == 0 {
				all := s.All()
				require.Len(rt, all, s.Len())
				i := 0
				s.Range("", "", func(e *watchcache.Element) bool { require.Same(rt, e, all[i]); i++; return true })
			}
			prefix := rapid.SampledFrom([]string{"", "/", "/pods/", "/pods/ns5/", "/pods/ns1", "/other/"}).Draw(rt, "prefix")
			from := randomFrom(rt)
			want := 0
			s.Range(prefix, from, func(*watchcache.Element) bool { want++; return true })
			require.Equal(rt, want, s.Count(prefix, from), "from %q under %q", from, prefix)
		}
	})
}

// An earlier version has elements outside of a prefix that covers the latest one.
func TestCountOfAnEarlierVersion(t *testing.T) {
	s := watchcache.New(roomy)
	require.False(t, s.Latest().Covers("/a/"), "there is no element")
	s.Replace([]*watchcache.Element{element("/a/1", 1, "1"), element("/b/1", 1, "1")}, 1)
	require.False(t, s.Latest().Covers("/a/"))
	require.False(t, s.Latest().Covers("/b/"))
	apply(t, s, deleted("/b/1", 2, "1"), modified("/a/1", 3, "1"))
	require.True(t, s.Latest().Covers("/a/"))
	earlier := at(t, s, 1)
	require.False(t, earlier.Covers("/a/"))
	require.Equal(t, 1, earlier.Count("/a/", ""))
	require.Equal(t, 2, earlier.Count("/", ""))
}

// Regression 96: the first count in an earlier version makes no slice of all its elements.
func TestCountOfAnEarlierVersionIsCheap(t *testing.T) {
	const objects = 100_000
	s := watchcache.New(roomy)
	all := make([]*watchcache.Element, objects)
	for i := range all {
		all[i] = element(fmt.Sprintf("/a/%06d", i), 1, "1")
	}
	s.Replace(all, 1)
	apply(t, s, deleted("/a/000001", 2, "1"), added("/b/1", 3, "1"))
	earlier := at(t, s, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.Equal(t, objects, earlier.Count("/", ""))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(objects))
}

// Regression 96: a progress report changes no element, so that the slice of all
// elements is not built again after it.
func TestProgressKeepsTheRow(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("b", 1, "1")}, 1)
	before := s.Latest().All()
	require.NoError(t, s.Progress(7))
	after := s.Latest()
	require.Equal(t, uint64(7), after.RV())
	require.Same(t, &before[0], &after.All()[0])
	apply(t, s, modified("a", 8, "2"))
	require.NotSame(t, &before[0], &s.Latest().All()[0])
}
