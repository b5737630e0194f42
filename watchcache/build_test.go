// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A state that is listed in the order of keys, which is filled without looking each
// key up, is the one that is listed in any order with former versions of its objects
// in between, and the one whose objects come one by one: by key, by range, by each
// index, in its digest and its size. All of them take the same changes afterwards, and
// what was read before is not affected by these (W5).
func TestListedStateIsThatOfChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, 2, 15, 16, 31, 32, 33, 300}).Draw(rt, "objects")
		value := func() string { return fmt.Sprint(rapid.IntRange(0, 3).Draw(rt, "value")) }
		var sorted, any []*watchcache.Element
		one := watchcache.New(roomy)
		one.Replace(nil, 1)
		for i := range n {
			e := element(fmt.Sprintf("ns-%d/pod-%03d", i*7/max(1, n), i), uint64(i+2), value())
			if rapid.Bool().Draw(rt, "words") {
				e.Object.(*corev1.Pod).Annotations = map[string]string{"words": "a " + value() + " a"}
			}
			sorted = append(sorted, e)
			any = append(any, copyOf(e))
			_, err := one.Apply(watchcache.Change{Type: watchcache.Added, Element: copyOf(e), RV: e.RV, Whole: true})
			require.NoError(rt, err)
		}
		formers := 0
		for i := range n {
			if rapid.IntRange(0, 9).Draw(rt, "former") == 0 {
				any = append(any, element(sorted[i].Key, 1, "former"))
				formers++
			}
		}
		any = rapid.Permutation(any).Draw(rt, "order")
		listed, mixed := watchcache.New(roomy), watchcache.New(roomy)
		rv := uint64(n + 1)
		require.Zero(rt, listed.Replace(slices.Clone(sorted), rv))
		require.Equal(rt, formers, mixed.Replace(any, rv), "former versions")
		require.NoError(rt, one.Progress(rv))

		states := []*watchcache.State{listed, mixed, one}
		before := []*watchcache.Snapshot{}
		want := shown(listed.Latest())
		for i, s := range states {
			before = append(before, s.Latest())
			require.Equal(rt, want, shown(s.Latest()), "state %d", i)
		}
		for range rapid.IntRange(0, 40).Draw(rt, "changes") {
			rv++
			key, typ := fmt.Sprintf("ns-0/new-%d", rv), watchcache.Added
			if n > 0 && rapid.Bool().Draw(rt, "known") {
				key, typ = sorted[rapid.IntRange(0, n-1).Draw(rt, "which")].Key, watchcache.Modified
				switch found, _ := listed.Get(key); {
				case found == nil:
					typ = watchcache.Added
				case rapid.Bool().Draw(rt, "deleted"):
					typ = watchcache.Deleted
				}
			}
			e := element(key, rv, value())
			for _, s := range states {
				_, err := s.Apply(watchcache.Change{Type: typ, Element: copyOf(e), RV: rv, Whole: true})
				require.NoError(rt, err)
			}
		}
		after := shown(listed.Latest())
		for i, s := range states {
			require.Equal(rt, after, shown(s.Latest()), "state %d after the changes", i)
			require.Equal(rt, want, shown(before[i]), "the snapshot of state %d from before the changes", i)
		}
	})
}

// copyOf returns another element of the same object.
func copyOf(e *watchcache.Element) *watchcache.Element {
	return &watchcache.Element{Key: e.Key, RV: e.RV, Object: e.Object, Labels: e.Labels, Fields: e.Fields, Size: e.Size}
}

// shown is everything that a snapshot shows, by each way to read it.
func shown(s *watchcache.Snapshot) []string {
	found := []string{fmt.Sprintf("%d objects at %d, digest %x", s.Len(), s.RV(), uint64(s.Digest()))}
	add := func(how string) func(*watchcache.Element) bool {
		return func(e *watchcache.Element) bool {
			found = append(found, fmt.Sprintf("%s: %s@%d %s", how, e.Key, e.RV, e.Labels["value"]))
			return true
		}
	}
	s.Range("", "", func(e *watchcache.Element) bool {
		if got := s.Get(e.Key); got != e {
			found = append(found, fmt.Sprintf("%s: Get has another element", e.Key))
		}
		return add("all")(e)
	})
	s.Range("ns-1/", "ns-1/pod-020", add("prefix"))
	for _, index := range []string{"value", "words"} {
		for _, value := range []string{"0", "1", "2", "3", "a", "former"} {
			s.RangeIndex(index, value, "", "", add(index+"="+value))
		}
	}
	return found
}
