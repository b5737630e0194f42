// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Regression 8: a deletion of a key that the state does not have is refused, so
// that no event lacks its previous state.
func TestDeleteWithoutPreviousIsRefused(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	_, err := s.Apply(deleted("a", 2, "1"))
	require.ErrorIs(t, err, watchcache.ErrGap)
	apply(t, s, added("a", 3, "1"))
	for _, kind := range []watchcache.EventType{0, watchcache.Deleted + 1} {
		_, err = s.Apply(watchcache.Change{Type: kind, Element: element("a", 4, "1"), RV: 4})
		require.ErrorIs(t, err, watchcache.ErrGap, "there is no such type of change")
	}
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
