// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The memory that snapshots keep beyond the state grows with what is written, up
// to all that they have; an older one has what a younger one keeps.
func TestKept(t *testing.T) {
	const objects = 100
	s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1})
	s.Replace(nil, 1)
	rv := uint64(1)
	for i := range objects {
		rv++
		apply(t, s, added(fmt.Sprintf("k%03d", i), rv, "1"))
	}
	kept := func(snapshots ...*watchcache.Snapshot) int64 {
		all := watchcache.Retained{}
		for _, snapshot := range snapshots {
			all = all.With(snapshot.Mark(), s.Stats())
		}
		return all.Bytes()
	}
	rewrite := func(n int) {
		for i := range n {
			rv++
			apply(t, s, modified(fmt.Sprintf("k%03d", i), rv, "1"))
		}
	}
	first := s.Latest()
	require.Zero(t, kept(first))
	before := s.Stats().Superseded
	rewrite(objects / 2)
	half := kept(first)
	require.Greater(t, half, s.Stats().Superseded-before, "the nodes of the trees count beside the elements")
	second := s.Latest()
	require.Equal(t, first.Mark().Position+objects/2, second.Mark().Position)
	require.Zero(t, kept(second))
	rewrite(objects)
	whole := kept(first)
	require.Greater(t, whole, half)
	require.Greater(t, kept(first, second), whole)
	require.Less(t, kept(first, second), whole+kept(second), "the first has some of what the second keeps")
	for range 10 {
		rewrite(objects)
	}
	require.Equal(t, whole, kept(first), "a snapshot keeps no more than it has")
	require.Equal(t, whole+kept(second), kept(first, second))

	superseded := s.Stats().Superseded
	bytes := s.Stats().ObjectBytes
	s.Replace(nil, rv)
	require.Equal(t, superseded+bytes, s.Stats().Superseded)
	require.Equal(t, whole, kept(first))
}

// Events that Hold keeps stay, whatever their age and, up to HeldBytes, their
// size.
func TestHold(t *testing.T) {
	s := watchcache.New(watchcache.Config{History: time.Second, WindowBytes: 1, HeldBytes: 1 << 20})
	s.Replace(nil, 1)
	apply(t, s, added("k", 2, "1"))
	from := s.Stats().Next
	s.Hold(from)
	rv := uint64(2)
	write := func(n int) {
		for range n {
			rv++
			apply(t, s, modified("k", rv, "1"))
		}
		s.Dispatched(s.Stats().Next)
		s.Trim(int64(time.Hour) * int64(rv))
	}
	write(1000)
	require.Equal(t, from, s.Stats().Oldest, "events before it are not held, those from it on are")
	write(10_000)
	require.Greater(t, s.Stats().Oldest, from, "no more than HeldBytes are held")
	require.LessOrEqual(t, s.Stats().WindowBytes, int64(1<<20))
	s.ReleaseHold()
	write(1)
	require.LessOrEqual(t, s.Stats().WindowEvents, 1)
}
