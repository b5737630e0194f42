// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// A server recovers from panics in its handlers. An index that panics while a
// version is read by it must not leave half of one, or nothing, to later
// readers.
func TestIndexThatPanicsLeavesNothing(t *testing.T) {
	broken := false
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1 << 40, Indexes: []watchcache.Index{{
		Name: "sometimes", Values: func(e *watchcache.Element, dst []string) []string {
			if broken && e.Key == "b" {
				panic("in the index")
			}
			return append(dst, "x")
		},
	}}})
	apply(t, s, added("a", 1, "1"), added("b", 2, "1"), modified("a", 3, "2"), modified("b", 4, "2"))
	snapshot := at(t, s, 2)
	broken = true
	require.Panics(t, func() { rangedIndex(snapshot, "sometimes", "x", "", "") })
	broken = false
	got, _ := rangedIndex(at(t, s, 2), "sometimes", "x", "", "")
	require.Equal(t, "a=1@1 b=1@2", got)
}

// A reader that has given up gets nothing, and takes nothing from others.
func TestAtUntil(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	apply(t, s, added("a", 2, "1"), added("b", 3, "1"))
	gone := make(chan struct{})
	close(gone)
	_, err := s.AtUntil(gone, 2)
	require.ErrorIs(t, err, watchcache.ErrStopped)
	require.Equal(t, "a=1@2", contents(at(t, s, 2)))
	kept, err := s.AtUntil(gone, 2)
	require.NoError(t, err, "there is nothing to wait for")
	require.Same(t, at(t, s, 2), kept)
}

// Regression 94: a snapshot that Keep was called for is found when the window
// has moved on, whether it was the latest or an earlier one.
func TestKeep(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: 10 * time.Second, WindowBytes: 1 << 40})
	s.Replace(nil, 1)
	apply(t, s, added("a", 2, "1"), added("b", 3, "1"))
	latest, earlier := s.Latest(), at(t, s, 2)
	s.PinSnapshot(latest)
	s.PinSnapshot(earlier)
	apply(t, s, added("c", 4, "1"), added("d", 5, "1"))
	s.Dispatched(s.Stats().Next)
	now := int64(0)
	for range 20 {
		now += int64(6 * time.Second)
		s.Trim(now)
		require.Same(t, latest, at(t, s, 3))
		require.Same(t, earlier, at(t, s, 2))
	}
	require.Equal(t, uint64(5), s.Stats().OldestRV)
	_, err := s.At(4)
	require.ErrorIs(t, err, watchcache.ErrExpired)

	// A compaction of the source ends it.
	s.Compacted(3)
	_, err = s.At(2)
	require.ErrorIs(t, err, watchcache.ErrCompacted)
	require.Same(t, latest, at(t, s, 3))

	s.Trim(now + int64(10*time.Second) + 1)
	_, err = s.At(3)
	require.ErrorIs(t, err, watchcache.ErrExpired, "nobody has asked for it")
}

// Snapshots whose readers never return, and versions that were not given to
// Keep, do not push out those that are in use.
func TestKeepIsBounded(t *testing.T) {
	s := watchcache.New(roomy)
	s.Replace(nil, 1)
	var all []weak.Pointer[watchcache.Snapshot]
	for rv := uint64(2); rv < 50; rv++ {
		apply(t, s, added(fmt.Sprint(rv), rv, "1"))
		latest := s.Latest()
		s.PinSnapshot(latest)
		all = append(all, weak.Make(latest))
	}
	promised := s.Latest()
	apply(t, s, added("last", 50, "1"))
	for rv := uint64(2); rv < 30; rv++ {
		at(t, s, rv)
	}
	require.Same(t, promised, at(t, s, 49))
	runtime.GC()
	left := 0
	for _, p := range all {
		if p.Value() != nil {
			left++
		}
	}
	require.Equal(t, 8, left)

	// A kept snapshot is of the history that it was taken from.
	before := s.Latest()
	s.Replace(nil, 50)
	s.PinSnapshot(before)
	require.Empty(t, contents(at(t, s, 50)))
	s.Replace(nil, 60)
	_, err := s.At(50)
	require.ErrorIs(t, err, watchcache.ErrExpired)
}

// The latest snapshot, read while revisions are unfinished, takes the place of no version
// that others page through.
func TestLatestTakesNoPlaceOfOthers(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1, Indexes: indexes})
	s.Replace(nil, 1)
	applyPart(t, s, added("a", 2, "1"), modified("a", 3, "2"), modified("a", 4, "3"))
	paged := at(t, s, 2)
	for rv := uint64(5); rv < 30; rv++ {
		s.Dispatched(s.Stats().Next)
		applyPart(t, s, modified("a", rv, "4"))
		latest := s.Latest()
		require.Equal(t, rv-1, latest.RV())
		require.Same(t, latest, s.Latest())
		require.False(t, s.HasSnapshot(rv-1))
	}
	require.Greater(t, s.Stats().OldestRV, uint64(2))
	require.Same(t, paged, at(t, s, 2))
}

// An index that comes or goes takes no snapshot from readers that page through it.
func TestIndexKeepsPinnedSnapshots(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Hour, WindowBytes: 1, Indexes: indexes})
	s.Replace(nil, 1)
	apply(t, s, added("a", 2, "1"))
	pinned := s.Latest()
	s.PinSnapshot(pinned)
	_, err := s.AddIndex(watchcache.Index{Name: "late", Values: indexes[0].Values}, 1<<40)
	require.NoError(t, err)
	require.True(t, s.Latest().HasIndex("late"))
	s.DropIndex("late")
	s.Dispatched(s.Stats().Next)
	apply(t, s, modified("a", 3, "2"))
	s.Dispatched(s.Stats().Next)
	apply(t, s, modified("a", 4, "3"))
	require.Greater(t, s.Stats().OldestRV, uint64(2))
	require.Same(t, pinned, at(t, s, 2))
	s.Compacted(2)
	require.True(t, s.HasSnapshot(2))
	s.Compacted(3)
	require.False(t, s.HasSnapshot(2))
}
