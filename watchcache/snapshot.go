// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"strings"
	"sync/atomic"
)

// Snapshot is all elements at one resourceVersion, in the order of their keys.
// A snapshot is immutable and safe for concurrent use (W2, W5); a reference to
// it keeps its elements in memory.
type Snapshot struct {
	rv      uint64
	next    Position
	indexes []Index
	base    *base
	older   *overlay // nil: base is the version itself
	// kept is the cache of snapshots that State.Keep puts this one into.
	kept *keptSnapshots
	// flat is the result of All if there is an overlay; nil before the first call.
	flat atomic.Pointer[[]*Element]
}

// base holds the trees that one or more snapshots read, and that are not
// written to any more.
type base struct {
	trees trees
	mark  Mark
	// flat is the result of Snapshot.All, nil before the first call. Like the
	// encodings of an element, flat holds nothing that the trees do not.
	flat atomic.Pointer[[]*Element]
}

// RV returns the resourceVersion that the snapshot shows.
func (s *Snapshot) RV() uint64 { return s.rv }

// Next returns the position of the first event that the snapshot does not
// contain: a watcher that was given the snapshot continues there.
func (s *Snapshot) Next() Position { return s.next }

// Len returns the number of elements.
func (s *Snapshot) Len() int {
	if s.older != nil {
		return s.older.length
	}
	return s.base.trees.primary.Len()
}

// Get returns the element with the key, nil if there is none.
func (s *Snapshot) Get(key string) *Element {
	found, _ := s.base.trees.primary.Get(item{key: key})
	if s.older == nil || (found.element != nil && found.element.RV <= s.rv) {
		return found.element
	}
	return s.older.get(key)
}

// Range calls yield for each element whose key starts with prefix and is not
// below from, in key order, until yield returns false.
func (s *Snapshot) Range(prefix, from string, yield func(*Element) bool) {
	start := item{key: max(prefix, from)}
	if s.older == nil {
		s.base.trees.primary.AscendGreaterOrEqual(start, func(i item) bool {
			return strings.HasPrefix(i.key, prefix) && yield(i.element)
		})
		return
	}
	m := overlaid{older: s.older.from(start.key), rv: s.rv, prefix: prefix, yield: yield}
	s.base.trees.primary.AscendGreaterOrEqual(start, func(i item) bool { return m.take(i.key, i.element) })
	m.finish()
}

// RangeIndex is Range over the elements that the named index has under value.
// RangeIndex returns false, without a call of yield, if there is no such index.
func (s *Snapshot) RangeIndex(index, value, prefix, from string, yield func(*Element) bool) bool {
	i := s.index(index)
	if i < 0 {
		return false
	}
	s.rangeIndex(i, value, prefix, from, yield)
	return true
}

// Digest returns the digest of the snapshot's elements. The state updates the
// digest with every change, so that reading it costs nothing; only for an
// earlier version, made by State.At, all elements are walked over.
func (s *Snapshot) Digest() Digest {
	digest := *s.base.trees.digest
	if s.older == nil {
		return digest
	}
	s.base.trees.primary.Ascend(func(i item) bool {
		if i.element.RV > s.rv {
			digest.Toggle(i.key, i.element.RV)
		}
		return true
	})
	for _, i := range s.older.items {
		digest.Toggle(i.key, i.element.RV)
	}
	return digest
}
