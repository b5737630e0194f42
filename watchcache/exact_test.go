// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

func TestAtUndoes(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1"), element("z", 1, "1")}, 5)
	apply(t, s,
		added("b", 6, "1"), modified("a", 7, "2"), deleted("b", 8, "1"), added("b", 10, "2"), modified("b", 11, "3"),
		deleted("a", 12, "2"), deleted("b", 12, "3"), added("c", 12, "1"), added("a", 13, "3"))
	require.NoError(t, s.Progress(15))
	want := map[uint64]string{
		5: "a=1@1 z=1@1", 6: "a=1@1 b=1@6 z=1@1", 7: "a=2@7 b=1@6 z=1@1", 8: "a=2@7 z=1@1", 9: "a=2@7 z=1@1",
		10: "a=2@7 b=2@10 z=1@1", 11: "a=2@7 b=3@11 z=1@1", 12: "c=1@12 z=1@1", 13: "a=3@13 c=1@12 z=1@1",
		14: "a=3@13 c=1@12 z=1@1", 15: "a=3@13 c=1@12 z=1@1",
	}
	for rv, contained := range want {
		snapshot := at(t, s, rv)
		require.Equal(t, rv, snapshot.RV())
		require.Equal(t, contained, contents(snapshot), "at %d", rv)
		require.Equal(t, contained, showAll(snapshot), "at %d", rv)
		p, err := s.PositionAfter(rv)
		require.NoError(t, err)
		require.Equal(t, p, snapshot.Next(), "a watch from the snapshot at %d continues there", rv)
	}
	for rv := range uint64(5) {
		_, err := s.At(rv)
		require.ErrorIs(t, err, watchcache.ErrExpired)
		require.ErrorContains(t, err, fmt.Sprint(rv))
	}
	_, err := s.At(16)
	require.ErrorIs(t, err, watchcache.ErrFuture)
}

// showAll is contents by Get.
func showAll(s *watchcache.Snapshot) string {
	out := ""
	for _, key := range []string{"a", "b", "c", "z"} {
		if e := s.Get(key); e != nil {
			out += show(e) + " "
		}
	}
	return out[:max(0, len(out)-1)]
}

// Paging at one resourceVersion undoes once.
func TestAtIsKeptForPaging(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: 10 * time.Second, WindowBytes: 1 << 40})
	s.Replace(nil, 1)
	for rv := uint64(2); rv < 20; rv++ {
		apply(t, s, added(fmt.Sprint(rv), rv, "1"))
	}
	first := at(t, s, 7)
	for rv := uint64(20); rv < 30; rv++ {
		apply(t, s, added(fmt.Sprint(rv), rv, "1"))
		require.Same(t, first, at(t, s, 7))
	}

	// Four others at a time leave it where it is; a dozen push it out.
	for rv := uint64(10); rv < 14; rv++ {
		at(t, s, rv)
	}
	require.Same(t, first, at(t, s, 7))
	for rv := uint64(10); rv < 22; rv++ {
		at(t, s, rv)
	}
	again := at(t, s, 7)
	require.NotSame(t, first, again)
	require.Equal(t, contents(first), contents(again))

	// It outlives the events that it was made of, as long as it is used.
	s.Dispatched(s.Stats().Next)
	now := int64(0)
	for range 20 {
		now += int64(5 * time.Second)
		s.Trim(now)
		require.Same(t, again, at(t, s, 7))
	}
	require.Zero(t, s.Stats().WindowEvents)
	_, err := s.At(8)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	s.Trim(now + int64(10*time.Second) + 1)
	_, err = s.At(7)
	require.ErrorIs(t, err, watchcache.ErrExpired)
}

// Readers of one resourceVersion share one making.
func TestAtIsMadeOnce(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	for rv := uint64(2); rv < 500; rv++ {
		apply(t, s, added(fmt.Sprint(rv), rv, "1"))
	}
	for rv := uint64(1); rv < 40; rv++ {
		got := make([]*watchcache.Snapshot, 8)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i], _ = s.At(rv) })
		}
		wg.Wait()
		for _, snapshot := range got {
			require.Same(t, got[0], snapshot)
		}
	}
}

func TestAtAfterFailureSucceedsLater(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	_, err := s.At(3)
	require.ErrorIs(t, err, watchcache.ErrFuture)
	_, err = s.At(0)
	require.ErrorIs(t, err, watchcache.ErrExpired)
	apply(t, s, added("a", 2, "1"), added("b", 3, "1"), added("c", 4, "1"))
	require.Equal(t, "a=1@2 b=1@3", contents(at(t, s, 3)))
}

// Regression 19: what the source has compacted is refused also on a quiet
// resource, and also if a snapshot is kept.
func TestAtRefusesWhatIsCompacted(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	apply(t, s, added("a", 2, "1"), added("b", 5, "1"), added("c", 6, "1"))
	kept := at(t, s, 4)
	s.Compacted(4)
	require.Same(t, kept, at(t, s, 4), "the compacted resourceVersion itself can be read")
	for rv := uint64(1); rv < 4; rv++ {
		_, err := s.At(rv)
		require.ErrorIs(t, err, watchcache.ErrCompacted)
	}
	s.Compacted(5)
	_, err := s.At(4)
	require.ErrorIs(t, err, watchcache.ErrCompacted)
	require.ErrorContains(t, err, "resourceVersion 4, compacted up to 5")
	s.Compacted(2)
	_, err = s.At(4)
	require.ErrorIs(t, err, watchcache.ErrCompacted, "what is known never shrinks")
	require.Equal(t, "a=1@2 b=1@5", contents(at(t, s, 5)))
	require.Equal(t, "a=1@2 b=1@5 c=1@6", contents(s.Latest()))

	s.Compacted(100)
	_, err = s.At(6)
	require.ErrorIs(t, err, watchcache.ErrCompacted)
	_, err = s.At(101)
	require.ErrorIs(t, err, watchcache.ErrFuture, "what is not there yet comes first")
}

func TestAtDoesNotCopyTheWholeState(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace([]*watchcache.Element{element("a", 1, "1")}, 1)
	apply(t, s, added("b", 2, "1"))
	require.Same(t, s.Latest().Get("a"), at(t, s, 1).Get("a"), "elements are shared")
	e, _ := s.Get("a")
	require.Same(t, e, at(t, s, 1).Get("a"))
}

// A server recovers from panics in its handlers. An index that panics while a
// version is made must not leave half of one, or nothing, to later readers.
func TestAtThatPanicsLeavesNothing(t *testing.T) {
	broken := false
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, Indexes: []watchcache.Index{{
		Name: "sometimes", Values: func(_ *watchcache.Element, dst []string) []string {
			if broken {
				panic("in the index")
			}
			return append(dst, "x")
		},
	}}})
	apply(t, s, added("a", 1, "1"), added("b", 2, "1"))
	broken = true
	require.Panics(t, func() { _, _ = s.At(1) })
	broken = false
	for range 3 {
		snapshot, err := s.At(1)
		if err == nil {
			require.NotNil(t, snapshot)
			require.Equal(t, "a=1@1", contents(snapshot))
			return
		}
	}
	t.Fatal("the version stays lost")
}
