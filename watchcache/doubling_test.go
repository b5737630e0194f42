// SPDX-License-Identifier: Apache-2.0

//go:build unix && !race && !invariants

// The race detector and the invariants take time of their own.

package watchcache_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/internal/doubling"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// numbered returns n changes of a kind, of the keys and values 0 to n-1, from a resourceVersion on.
func numbered(n int, rv uint64, change func(key string, rv uint64, value string) watchcache.Change) []watchcache.Change {
	changes := make([]watchcache.Change, n)
	for i := range changes {
		changes[i] = change(fmt.Sprintf("/%06d", i), rv+uint64(i), fmt.Sprint(i))
	}
	return changes
}

// listedState returns a state of n elements.
func listedState(config watchcache.Config, n int) *watchcache.State {
	s := watchcache.New(config)
	elements := make([]*watchcache.Element, n)
	for i, c := range numbered(n, 1, added) {
		elements[i] = c.Element
	}
	s.Replace(elements, uint64(n))
	return s
}

// What a state does with n elements, events or values takes n log n (regression 178).
func TestWorkIsLinear(t *testing.T) {
	apply := func(s *watchcache.State, changes []watchcache.Change) {
		for _, c := range changes {
			if _, err := s.Apply(c); err != nil {
				require.NoError(t, err) // an assertion that holds costs more than the change
			}
		}
	}
	for name, prepare := range map[string]func(n int) func(){
		"floors of n values": func(n int) func() {
			config := remembering()
			config.History, config.WindowBytes, config.FloorValues = 0, 1, n/2
			s, changes := listedState(config, 0), numbered(n, 1, added)
			return func() {
				for i := range changes {
					apply(s, changes[i:i+1])
					s.Dispatched(s.Stats().Next)
				}
			}
		},
		"floors of an interest in n values": func(n int) func() {
			config := remembering()
			config.History, config.WindowBytes, config.FloorValues = 0, 1, n
			s := listedState(config, 0)
			apply(s, numbered(n, 1, added))
			s.Dispatched(s.Stats().Next)
			s.Trim(1)
			values := make([]string, n)
			for i := range values {
				values[i] = fmt.Sprint(i)
			}
			return func() {
				for range 20 {
					_, _, err := s.PositionFor(uint64(n-1), byValue(values...))
					require.ErrorIs(t, err, watchcache.ErrExpired, "the last value changed later")
				}
			}
		},
		"backfill": func(n int) func() {
			config := remembering()
			config.BackfillEvents = 2 * n
			s := listedState(config, n)
			changes := append(numbered(n/2, 1, added), numbered(n/2, uint64(n/2+1), deleted)...)
			for i := range n / 2 {
				changes[i].Element.Key, changes[n/2+i].Element.Key = fmt.Sprint("/gone", i), fmt.Sprint("/gone", i)
			}
			s.Replace(nil, uint64(n))
			at := s.Latest()
			return func() {
				_, err := s.Backfill(at, 0, changes, nil, 0)
				require.NoError(t, err)
			}
		},
		"backfill of what is there": func(n int) func() {
			config := remembering()
			config.BackfillEvents = n
			s, changes := listedState(config, n), numbered(n, 1, added)
			at := s.Latest()
			return func() {
				_, err := s.Backfill(at, 0, changes, nil, 0)
				require.NoError(t, err)
			}
		},
		"events": func(n int) func() {
			s, changes := listedState(remembering(), n), numbered(n, uint64(n+1), modified)
			return func() { apply(s, changes) }
		},
		"events that leave the window": func(n int) func() {
			config := remembering()
			config.History, config.MinEvents = 1, 0
			s := listedState(config, n)
			apply(s, numbered(n, uint64(n+1), modified))
			s.Dispatched(s.Stats().Next)
			return func() { s.Trim(10) }
		},
		"a list, and the same again": func(n int) func() {
			s := watchcache.New(remembering())
			elements := make([][]*watchcache.Element, 2)
			for i := range elements {
				for _, c := range numbered(n, 1, added) {
					elements[i] = append(elements[i], c.Element)
				}
			}
			return func() {
				for _, all := range elements {
					s.Replace(all, uint64(n))
				}
			}
		},
		"an earlier version": func(n int) func() {
			s := listedState(remembering(), n)
			apply(s, numbered(n, uint64(n+1), modified))
			return func() {
				elements := 0
				at(t, s, uint64(n)).Range("", "", func(*watchcache.Element) bool { elements++; return true })
				require.Equal(t, n, elements)
			}
		},
		"an index": func(n int) func() {
			config := remembering()
			config.Indexes = nil
			s := listedState(config, n)
			return func() {
				_, err := s.AddIndex(indexes[0], 1<<40)
				require.NoError(t, err)
				s.DropIndex(indexes[0].Name)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { doubling.Check(t, 500, prepare) })
	}
}
