// SPDX-License-Identifier: Apache-2.0

//go:build unix

package keptlists

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/doubling"
)

// chunksKept is so few chunks that a processor's own cache has room for them after four
// doublings: they differ by the number alone.
const chunksKept = 100

// someChunks returns parts of n new chunks, each in both forms.
func someChunks(n int, prefix string) (all []*part) {
	for i := range n {
		c := &chunk{at: place{key: prefix + strconv.Itoa(i)}, ids: []identity{{key: uint64(i)}}}
		c.content.Store(&content{plain: make([]byte, 100), deflated: &deflated{}})
		all = append(all, &part{chunk: c, keep: true})
	}
	return all
}

// fullStore returns a Store whose limit n chunks reach, and those.
func fullStore(t *testing.T, n int) (s *Store, kept []*part) {
	kept = someChunks(n, "a")
	bytes := int64(n) * kept[0].chunk.size(kept[0].chunk.content.Load())
	s = storeOf(&Encoder{}, bytes)
	s.lists.Add(1)
	require.True(t, s.keep(kept), "there is no room for %d chunks", n)
	require.Equal(t, bytes, s.Bytes())
	return s, kept
}

// A list of n chunks for which there is no room beside n that other lists use takes time in
// proportion to n (regression 178).
func TestChunksWithoutRoom(t *testing.T) {
	doubling.Check(t, chunksKept, func(n int) func() {
		s, kept := fullStore(t, n)
		for _, p := range kept {
			s.usedPlain(p.chunk)
		}
		more := someChunks(n, "b")
		return func() { require.False(t, s.keep(more), "there is room for all") }
	})
}

// A smaller limit and age evict chunks in time proportional to their
// number, whether the last list used the chunks or not (regression 178).
func TestChunksGiveWay(t *testing.T) {
	for name, lists := range map[string]int64{"used": 0, "unused": protected} {
		for which, shrink := range map[string]func(s *Store){
			"all":  func(s *Store) { s.SetLimit(0) },
			"half": func(s *Store) { s.SetLimit(s.Bytes() / 2) },
			"one by one": func(s *Store) {
				for limit := s.Bytes(); s.Bytes() > 0; limit -= 150 {
					s.SetLimit(max(limit, 0))
				}
			},
			"aged": func(s *Store) {
				for i := range time.Duration(3) {
					s.Age((i + 1) * agingPeriod)
				}
			},
		} {
			t.Run(name+"/"+which, func(t *testing.T) {
				doubling.Check(t, chunksKept, func(n int) func() {
					s, _ := fullStore(t, n)
					before := s.Bytes()
					s.lists.Add(lists)
					return func() {
						shrink(s)
						require.LessOrEqual(t, s.Bytes(), before/2)
					}
				})
			})
		}
	}
}
