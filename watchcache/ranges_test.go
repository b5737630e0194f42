// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// randomSnapshot is of up to most elements in a few namespaces, each under
// some of a few words; some are changed or deleted after the first list.
func randomSnapshot(t *rapid.T, tb testing.TB, most int) *watchcache.Snapshot {
	s := watchcache.New(roomy)
	n := rapid.IntRange(0, most).Draw(t, "elements")
	elements := make([]*watchcache.Element, n)
	for i := range elements {
		elements[i] = element(fmt.Sprintf("/pods/ns%d/p%04d", i%3*5, i), 1, fmt.Sprint(i%4))
		annotate(elements[i], rapid.SampledFrom([]string{"", "x", "y", "x y", "z", "x y z z"}).Draw(t, "words"))
	}
	s.Replace(elements, 1)
	for i, e := range elements {
		switch rapid.IntRange(0, 9).Draw(t, "later") {
		case 0:
			apply(tb, s, deleted(e.Key, uint64(i)+2, ""))
		case 1:
			change := modified(e.Key, uint64(i)+2, "9")
			annotate(change.Element, "x z")
			apply(tb, s, change)
		}
	}
	return s.Latest()
}

func randomFrom(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "/pods/ns0/p0003\x00", "/pods/ns5/", "/pods/ns5/p0010", "/pods/ns9"}).Draw(t, "from")
}

// keysUnder returns the keys that RangeIndexAny must find, found the slow way.
func keysUnder(s *watchcache.Snapshot, words []string, prefix, from string) (keys []string, entries int) {
	s.Range(prefix, from, func(e *watchcache.Element) bool {
		has := 0
		for _, word := range words {
			if slices.Contains(wordsOf(e), word) {
				has++
			}
		}
		if has > 0 {
			keys = append(keys, e.Key)
		}
		entries += has
		return true
	})
	return keys, entries
}

// A range over several values is that over everything, filtered: in key order,
// each element once, and it stops where it is told to.
func TestRangeIndexAny(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := randomSnapshot(rt, t, 500)
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z", "none"}), 0, 4).Draw(rt, "values")
		prefix := rapid.SampledFrom([]string{"", "/pods/", "/pods/ns5/", "/pods/ns1"}).Draw(rt, "prefix")
		from := randomFrom(rt)
		distinct := slices.Compact(slices.Sorted(slices.Values(words)))
		want, entries := keysUnder(s, distinct, prefix, from)
		stop := rapid.IntRange(1, len(want)+1).Draw(rt, "stop")
		var got []string
		require.True(rt, s.RangeIndexAny("words", words, prefix, from, func(e *watchcache.Element) bool {
			got = append(got, e.Key)
			return len(got) < stop
		}))
		require.Equal(rt, strings.Join(want[:min(stop, len(want))], " "), strings.Join(got, " "))
		require.Equal(rt, entries, s.CountIndex("words", distinct, prefix, from))
	})
}
