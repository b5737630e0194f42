// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

func TestNewStateIsEmptyAtZero(t *testing.T) {
	s := watchcache.New(roomy)
	require.Zero(t, s.RV())
	require.Equal(t, "", contents(s.Latest()))
	require.Zero(t, s.Latest().Len())
	e, rv := s.Get("a")
	require.Nil(t, e)
	require.Zero(t, rv)
	events, through, err := since(s, 0, 1)
	require.NoError(t, err)
	require.Empty(t, events)
	require.Zero(t, through)

	_, err = s.Apply(added("a", 0, "1"))
	require.ErrorIs(t, err, watchcache.ErrBackwards, "resourceVersion 0 means none")
}

// Each change goes to a state with a=1@5 and b=1@7, at resourceVersion 7 and
// complete up to 6.
func TestApply(t *testing.T) {
	unknown := modified("a", 9, "x")
	unknown.Type = 0
	beyond := modified("a", 9, "x")
	beyond.Type = watchcache.Deleted + 1
	for _, tc := range []struct {
		name   string
		change watchcache.Change
		want   error
		text   string
		after  string
	}{
		{"add", added("c", 8, "x"), nil, "", "a=1@5 b=1@7 c=x@8"},
		{"add at the same resourceVersion", added("c", 7, "x"), nil, "", "a=1@5 b=1@7 c=x@7"},
		{"modify", modified("a", 8, "x"), nil, "", "a=x@8 b=1@7"},
		{"modify at the same resourceVersion", modified("a", 7, "x"), nil, "", "a=x@7 b=1@7"},
		{"delete", deleted("b", 1000, "1"), nil, "", "a=1@5"},
		{"below the state", added("c", 6, "x"), watchcache.ErrBackwards, `ADDED of "c" at resourceVersion 6`, ""},
		{"add what exists", added("a", 8, "x"), watchcache.ErrGap, `ADDED of "a" at resourceVersion 8: the key already exists`, ""},
		{"modify what does not", modified("c", 8, "x"), watchcache.ErrGap, `MODIFIED of "c"`, ""},
		{"delete what does not", deleted("c", 8, "x"), watchcache.ErrGap, `DELETED of "c"`, ""},
		{"a key twice in one resourceVersion", modified("b", 7, "x"), watchcache.ErrGap, "the key is already at resourceVersion 7", ""},
		{"no type", unknown, watchcache.ErrGap, `UNKNOWN of "a"`, ""},
		{"a type beyond the last", beyond, watchcache.ErrGap, `UNKNOWN of "a"`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := watchcache.New(roomy)
			s.Replace(nil, 4)
			apply(t, s, added("a", 5, "1"))
			require.NoError(t, s.Progress(6))
			apply(t, s, added("b", 7, "1"))
			before, stats := s.Latest(), s.Stats()

			applied, err := s.Apply(tc.change)
			if tc.want != nil {
				require.ErrorIs(t, err, tc.want)
				require.ErrorContains(t, err, tc.text)
				require.Equal(t, watchcache.Applied{}, applied)
				require.Same(t, before, s.Latest(), "a refused change must change nothing")
				require.Equal(t, stats, s.Stats())
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.after, contents(s.Latest()))
			require.Equal(t, stats.Next, applied.Event.Position)
			require.Equal(t, tc.change.RV, applied.Event.RV)
			require.Same(t, tc.change.Element, applied.Event.Element)
			require.Same(t, before.Get(tc.change.Element.Key), applied.Event.Previous)
		})
	}
}

// Regression 8: a deletion of a key that the state does not have is refused, so
// that no event lacks its previous state.
func TestDeleteWithoutPreviousIsRefused(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	_, err := s.Apply(deleted("a", 2, "1"))
	require.ErrorIs(t, err, watchcache.ErrGap)
	apply(t, s, added("a", 3, "1"))
	e := apply(t, s, deleted("a", 4, "1")).Event
	require.Equal(t, "2:DELETED a=1@4 was a=1@3", showEvent(e), "carries the deletion's resourceVersion")
}

// Regression 17: the source was restored from a backup and its
// resourceVersion has gone backwards.
func TestReplaceMayGoBack(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 90, "old")}, 100)
	apply(t, s, added("b", 101, "old"), added("c", 102, "old"))
	require.NoError(t, s.Progress(110))
	s.Compacted(105)
	at(t, s, 109)
	end := s.Stats().Next

	s.Replace([]*watchcache.Element{element("a", 40, "new")}, 50)
	require.Equal(t, uint64(50), s.RV())
	require.Equal(t, "a=new@40", contents(s.Latest()))
	for rv := uint64(51); rv < 120; rv++ {
		_, err := s.At(rv)
		require.ErrorIs(t, err, watchcache.ErrFuture)
	}
	_, _, err := since(s, end, 1)
	require.ErrorIs(t, err, watchcache.ErrExpired, "a reader that had everything must learn of the break")

	for rv := uint64(51); rv < 120; rv++ {
		apply(t, s, added(fmt.Sprint("n", rv), rv, "new"))
	}
	for rv := uint64(50); rv < 120; rv++ {
		snapshot := at(t, s, rv)
		require.Equal(t, rv, snapshot.RV())
		require.Equal(t, int(rv-49), snapshot.Len(), "a snapshot from before Replace at %d", rv)
	}
}

func TestReplaceKeepsTheNewerOfTwo(t *testing.T) {
	s := watchcache.New(roomy)
	require.Zero(t, s.Replace(nil, 1))
	older, newer, same := element("a", 3, "older"), element("a", 7, "newer"), element("a", 7, "same")
	for _, list := range [][]*watchcache.Element{{older, newer}, {newer, older}, {newer, older, older}} {
		require.Equal(t, len(list)-1, s.Replace(list, 9))
		require.Equal(t, "a=newer@7", contents(s.Latest()))
		found, _ := rangedIndex(s.Latest(), "value", "older", "", "")
		require.Empty(t, found)
		require.Equal(t, 1, s.Stats().Objects)
	}
	require.Equal(t, 1, s.Replace([]*watchcache.Element{newer, same}, 9))
	require.Equal(t, 1, s.Latest().Len())
}

func TestReplaceAccountsBytes(t *testing.T) {
	s := watchcache.New(roomy)
	sized := func(key string, rv uint64, size int64) *watchcache.Element {
		e := element(key, rv, "v")
		e.Size = size
		return e
	}
	s.Replace([]*watchcache.Element{sized("a", 1, 0)}, 1)
	overhead := s.Stats().ObjectBytes
	s.Replace([]*watchcache.Element{sized("a", 1, 100), sized("b", 1, 1000), sized("a", 2, 10000)}, 2)
	require.Equal(t, 2*overhead+11000, s.Stats().ObjectBytes)
	s.Replace(nil, 3)
	require.Zero(t, s.Stats().ObjectBytes)
}

func TestEventTypeNames(t *testing.T) {
	require.Equal(t, "ADDED MODIFIED DELETED UNKNOWN",
		fmt.Sprint(watchcache.Added, " ", watchcache.Modified, " ", watchcache.Deleted, " ", watchcache.EventType(0)))
}
