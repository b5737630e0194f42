// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"sort"
	"strings"
)

// farCount is how many elements Count walks over before it has all of them put
// in a row, for the next one to do without the walk.
const farCount = 1024

// All returns all elements in key order. They are put in a row when first
// asked for, 8 bytes an element, and shared from then on: the caller does not
// write to what it gets, nor append to it.
func (s *Snapshot) All() []*Element {
	if flat := s.flat.Load(); flat != nil {
		return *flat
	}
	flat := make([]*Element, 0, s.Len())
	s.trees.primary.Ascend(func(i item) bool {
		flat = append(flat, i.element)
		return true
	})
	flat = slices.Clip(flat)
	s.flat.Store(&flat) // as good as what another reader may have stored
	return flat
}

// Covers tells whether all elements are under the prefix.
func (s *Snapshot) Covers(prefix string) bool {
	first, _ := s.trees.primary.Min()
	last, _ := s.trees.primary.Max()
	return strings.HasPrefix(first.key, prefix) && strings.HasPrefix(last.key, prefix)
}

// Count returns how many elements Range would yield. Paging through a snapshot
// counts what is left for every page, so that is cheap from the second page
// on.
func (s *Snapshot) Count(prefix, from string) int {
	from = max(prefix, from)
	if from == prefix && s.Covers(prefix) {
		return s.Len()
	}
	if s.flat.Load() == nil {
		if n := s.CountUpTo(prefix, from, farCount); n < farCount {
			return n
		}
	}
	rest := s.All()
	rest = rest[sort.Search(len(rest), func(i int) bool { return rest[i].Key >= from }):]
	return sort.Search(len(rest), func(i int) bool { return !strings.HasPrefix(rest[i].Key, prefix) })
}
