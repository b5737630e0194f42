// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"math"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
)

// farCount is the number of elements that Count walks over, from either end,
// before it builds the slice of all elements with All, which spares the next
// Count the walk.
const farCount = 1024

// All returns all elements in key order. The slice, 8 bytes an element, is
// built by the first call and shared from then on, also by snapshots of other
// resourceVersions with the same elements: the caller must not write or append
// to it.
func (s *Snapshot) All() []*Element {
	if flat := s.row().Load(); flat != nil {
		return *flat
	}
	flat := make([]*Element, 0, s.Len())
	s.Range("", "", func(e *Element) bool {
		flat = append(flat, e)
		return true
	})
	flat = slices.Clip(flat)
	s.row().Store(&flat) // as good as what another reader may have stored
	return flat
}

// row is where All stores its slice.
func (s *Snapshot) row() *atomic.Pointer[[]*Element] {
	if s.older != nil {
		return &s.flat
	}
	return &s.base.flat
}

// Covers reports whether the keys of all elements begin with the prefix. For an
// earlier version, made by State.At, Covers may return false because of
// elements that were written later.
func (s *Snapshot) Covers(prefix string) bool {
	first, _ := s.base.trees.primary.Min()
	last, _ := s.base.trees.primary.Max()
	if !strings.HasPrefix(first.key, prefix) || !strings.HasPrefix(last.key, prefix) {
		return false
	}
	if s.older == nil || len(s.older.items) == 0 {
		return true
	}
	older := s.older.items
	return strings.HasPrefix(older[0].key, prefix) && strings.HasPrefix(older[len(older)-1].key, prefix)
}

// Count returns the number of elements that Range would yield, and never costs
// more than Range does. A client that pages through a snapshot has the rest
// counted for every page: counting is cheap for the first and last pages, and
// from the second of the other pages on.
func (s *Snapshot) Count(prefix, from string) int {
	from = max(prefix, from)
	covers := s.Covers(prefix)
	if covers && from == prefix {
		return s.Len()
	}
	if s.row().Load() == nil {
		if !covers {
			return s.CountUpTo(prefix, from, math.MaxInt)
		}
		if n := s.CountUpTo(prefix, from, farCount); n < farCount {
			return n
		}
		below := 0
		s.Range(prefix, "", func(e *Element) bool {
			if e.Key >= from {
				return false
			}
			below++
			return below < farCount
		})
		if below < farCount {
			return s.Len() - below
		}
	}
	rest := s.All()
	rest = rest[sort.Search(len(rest), func(i int) bool { return rest[i].Key >= from }):]
	return sort.Search(len(rest), func(i int) bool { return !strings.HasPrefix(rest[i].Key, prefix) })
}
