// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

func TestLatestIsSharedUntilAChange(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	changes := []struct {
		name   string
		change func()
	}{
		{"Apply", func() { apply(t, s, added("b", 2, "1")) }},
		{"Apply at the same resourceVersion", func() { apply(t, s, added("c", 2, "1")) }},
		{"Progress", func() { require.NoError(t, s.Progress(3)) }},
		{"Apply after progress", func() { apply(t, s, added("d", 4, "1")) }},
		{"Replace", func() { s.Replace(nil, 4) }},
		{"Replace at the same resourceVersion", func() { s.Replace(nil, 4) }},
	}
	for _, c := range changes {
		latest := s.Latest()
		for range 10 {
			require.Same(t, latest, s.Latest())
			require.Same(t, latest, at(t, s, s.RV()))
		}
		// None of these is a change.
		_, err := s.Apply(modified("nowhere", 100, "x"))
		require.Error(t, err)
		s.Dispatched(s.Stats().Next)
		s.Trim(1)
		s.Compacted(1)
		require.Same(t, latest, s.Latest())

		c.change()
		require.NotSame(t, latest, s.Latest(), c.name)
		require.Equal(t, s.RV(), s.Latest().RV(), c.name)
		require.Equal(t, s.Stats().Next, s.Latest().Next(), c.name)
	}
}

// Progress at the state's own resourceVersion is no change.
func TestProgressAtTheSameResourceVersion(t *testing.T) {
	s := watchcache.New(roomy)
	apply(t, s, added("a", 2, "1"))
	latest := s.Latest()
	require.NoError(t, s.Progress(2))
	require.Same(t, latest, s.Latest())
}

// A snapshot shows its own resourceVersion for ever (W2, W5).
func TestSnapshotsNeverChange(t *testing.T) {
	s := watchcache.New(roomy)
	var all []*watchcache.Element
	for i := range 200 {
		all = append(all, element(fmt.Sprintf("k%03d", i), 1, "0"))
	}
	s.Replace(all, 1)
	type held struct {
		snapshot *watchcache.Snapshot
		contents string
		byValue  string
	}
	var holds []held
	hold := func(snapshot *watchcache.Snapshot) {
		byValue, _ := rangedIndex(snapshot, "value", "1", "", "")
		holds = append(holds, held{snapshot, contents(snapshot), byValue})
	}
	for i := range 600 {
		key, rv := fmt.Sprintf("k%03d", i*7%200), uint64(i+2)
		switch e, _ := s.Get(key); {
		case e == nil:
			apply(t, s, added(key, rv, "1"))
		case i%3 == 0:
			apply(t, s, deleted(key, rv, "1"))
		default:
			apply(t, s, modified(key, rv, fmt.Sprint(i%3)))
		}
		if i%20 == 0 {
			hold(s.Latest())
			hold(at(t, s, rv-min(rv-1, 15)))
		}
	}
	s.Replace(nil, 1000)
	for _, h := range holds {
		require.Equal(t, h.contents, contents(h.snapshot))
		byValue, _ := rangedIndex(h.snapshot, "value", "1", "", "")
		require.Equal(t, h.byValue, byValue)
	}
}

// Regression 27: namespace ns1 must not match ns11.
func TestPrefixEndsWithItsSlash(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{
		element("/pods/ns1/a", 1, "v"), element("/pods/ns1/b", 1, "v"),
		element("/pods/ns11/a", 1, "v"), element("/pods/ns1-x/a", 1, "v"), element("/pods/ns0/z", 1, "v"),
	}, 1)
	latest := s.Latest()
	require.Equal(t, "/pods/ns1/a=v@1 /pods/ns1/b=v@1", ranged(latest, "/pods/ns1/", ""))
	byValue, _ := rangedIndex(latest, "value", "v", "/pods/ns1/", "")
	require.Equal(t, "/pods/ns1/a=v@1 /pods/ns1/b=v@1", byValue)
	require.Equal(t, 2, latest.Count("/pods/ns1/", ""))
	require.Equal(t, 1, latest.Count("/pods/ns11/", ""))
	require.Equal(t, 5, latest.Count("/pods/", ""))
}

func TestRangeStops(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "v"), element("b", 1, "v"), element("c", 1, "v")}, 1)
	var got []string
	two := func(e *watchcache.Element) bool {
		got = append(got, e.Key)
		return len(got) < 2
	}
	s.Latest().Range("", "", two)
	require.Equal(t, []string{"a", "b"}, got)
	got = nil
	require.True(t, s.Latest().RangeIndex("value", "v", "", "", two))
	require.Equal(t, []string{"a", "b"}, got)
}

func TestGet(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 4)
	e, rv := s.Get("a")
	require.Equal(t, "a=1@1", show(e))
	require.Equal(t, uint64(4), rv)
	require.Same(t, e, s.Latest().Get("a"))
	require.Nil(t, s.Latest().Get("aa"))
	apply(t, s, modified("a", 5, "2"))
	e, rv = s.Get("a")
	require.Equal(t, "a=2@5", show(e))
	require.Equal(t, uint64(5), rv)
	apply(t, s, deleted("a", 6, "2"))
	e, rv = s.Get("a")
	require.Nil(t, e)
	require.Equal(t, uint64(6), rv)
}
