// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// maxInNode is how many elements a node of a tree has at most.
const maxInNode = 32

// Count returns the same before and after All has built its slice, and Estimate about that.
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
			all := s.Count(prefix, "")
			require.InDelta(rt, all, s.Estimate(prefix), float64(all)/2+maxInNode, "the estimate under %q", prefix)
		}
	})
}

// An earlier version has elements outside of a prefix that covers the latest one.
func TestCountOfAnEarlierVersion(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("/a/1", 1, "1"), element("/b/1", 1, "1")}, 1)
	apply(t, s, deleted("/b/1", 2, "1"), modified("/a/1", 3, "1"))
	require.True(t, s.Latest().Covers("/a/"))
	earlier := at(t, s, 1)
	require.False(t, earlier.Covers("/a/"))
	require.Equal(t, 1, earlier.Count("/a/", ""))
	require.Equal(t, 2, earlier.Count("/", ""))
}

// Many clients page through one snapshot at a time.
func TestCountOften(t *testing.T) {
	const n = 20_000
	s := watchcache.New(watchcache.Config{})
	elements := make([]*watchcache.Element, n)
	for i := range elements {
		elements[i] = &watchcache.Element{Key: fmt.Sprintf("/pods/%05d", i), RV: 1}
	}
	s.Replace(elements, 1)
	latest := s.Latest()
	require.Equal(t, n, latest.Count("/pods/", ""))
	require.Equal(t, n-15_000, latest.Count("/pods/", "/pods/15000"))
	require.Equal(t, n-15_500, latest.Count("/pods/", "/pods/15500"))
	require.Equal(t, n-3, latest.Count("/pods/", "/pods/00003"))
	var clients sync.WaitGroup
	for client := range 20 {
		clients.Go(func() {
			for at := client; at < n; at += 500 {
				assert.Equal(t, n-at, latest.Count("/pods/", elements[at].Key))
			}
		})
	}
	clients.Wait()
}

// A walk in pages counts the rest for each page.
func BenchmarkCountInAWalk(b *testing.B) {
	const n, page = 20_000, 500
	s := watchcache.New(watchcache.Config{})
	elements := make([]*watchcache.Element, n)
	for i := range elements {
		elements[i] = &watchcache.Element{Key: fmt.Sprintf("/pods/ns-%03d/pod-%05d", i/200, i), RV: 1}
	}
	s.Replace(elements, 1)
	rv := uint64(1)
	for b.Loop() {
		b.StopTimer()
		rv++
		require.NoError(b, s.Progress(rv)) // a new snapshot
		latest := s.Latest()
		b.StartTimer()
		from := ""
		for at := 0; at < n; at += page {
			if got := latest.Count("/pods/", from); got != n-at {
				b.Fatalf("got %d, want %d", got, n-at)
			}
			from = elements[min(at+page, n-1)].Key
		}
	}
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
