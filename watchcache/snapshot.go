// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"sort"
	"strings"
	"sync/atomic"
)

// Snapshot is all elements at one resourceVersion, in the order of their keys. A snapshot
// is immutable (W2, W5); a reference to it keeps its elements in memory.
type Snapshot struct {
	rv    uint64
	next  Position
	base  *base
	older *overlay // nil: base is the version itself
	// kept is the cache of snapshots that State.PinSnapshot puts this one into.
	kept *keptSnapshots
	// flat is the result of All if there is an overlay; nil before the first call.
	flat atomic.Pointer[[]*Element]
}

// base holds the trees of one or more snapshots, which are not written to any more.
type base struct {
	trees trees
	mark  Mark
	// flat is the result of Snapshot.All, nil before the first call.
	flat atomic.Pointer[[]*Element]
}

// RV returns the resourceVersion that the snapshot shows.
func (s *Snapshot) RV() uint64 { return s.rv }

// Next returns the position of the first event that the snapshot does not contain.
func (s *Snapshot) Next() Position { return s.next }

// Len returns the number of elements.
func (s *Snapshot) Len() int {
	n := s.base.trees.primary.length
	if o := s.older; o != nil {
		n += len(o.deleted) - len(o.added)
	}
	return n
}

// Get returns the element with the key, nil if there is none.
func (s *Snapshot) Get(key string) *Element {
	found := s.base.trees.primary.get(0, key)
	if s.older == nil || (found != nil && found.RV <= s.rv) {
		return found
	}
	if from := elementsFrom(s.older.elements, key); len(from) > 0 && from[0].Key == key {
		return from[0]
	}
	return nil
}

// Range calls yield for each element whose key starts with prefix and is not
// below from, in key order, until yield returns false.
func (s *Snapshot) Range(prefix, from string, yield func(*Element) bool) {
	s.rangeIndex(-1, "", prefix, from, yield)
}

// RangeIndex is Range over the elements that the named index has under value.
// RangeIndex returns false, without a call of yield, if there is no such index.
func (s *Snapshot) RangeIndex(index, value, prefix, from string, yield func(*Element) bool) bool {
	return s.RangeIndexAny(index, []string{value}, prefix, from, yield)
}

// Digest returns the digest of the snapshot's elements. Only for an earlier version, made by
// State.At, all elements are walked over.
func (s *Snapshot) Digest() Digest {
	digest := *s.base.trees.digest
	if s.older == nil {
		return digest
	}
	s.base.trees.primary.under(0, "", func(e *Element) bool {
		if e.RV > s.rv {
			digest.Toggle(e.Key, e.RV)
		}
		return true
	})
	for _, e := range s.older.elements {
		digest.Toggle(e.Key, e.RV)
	}
	return digest
}

// HasIndex reports whether the snapshot has the named index.
func (s *Snapshot) HasIndex(name string) bool { return s.base.trees.index(name) >= 0 }

// rangeIndex is RangeIndex by the number of the index, and Range for -1.
func (s *Snapshot) rangeIndex(index int, value, prefix, from string, yield func(*Element) bool) {
	tree, hash := s.base.trees.primary, uint64(0)
	if index >= 0 {
		tree, hash = s.base.trees.byIndex[index], hashOf(value)
	}
	from = max(prefix, from)
	if s.older == nil {
		tree.under(hash, from, func(e *Element) bool { return strings.HasPrefix(e.Key, prefix) && yield(e) })
		return
	}
	older, more := elementsFrom(s.older.indexed(s.base.trees.indexes, index, value), from), true
	tree.under(hash, from, func(e *Element) bool {
		if !strings.HasPrefix(e.Key, prefix) {
			return false
		}
		for more && len(older) > 0 && older[0].Key <= e.Key {
			more, older = yield(older[0]), older[1:]
		}
		more = more && (e.RV > s.rv || yield(e))
		return more
	})
	for more && len(older) > 0 && strings.HasPrefix(older[0].Key, prefix) {
		more, older = yield(older[0]), older[1:]
	}
}

// RangeIndexAny is RangeIndex over several values: each element once, in key order.
func (s *Snapshot) RangeIndexAny(index string, values []string, prefix, from string, yield func(*Element) bool) bool {
	i := s.base.trees.index(index)
	if i < 0 {
		return false
	}
	if len(values) == 1 {
		s.rangeIndex(i, values[0], prefix, from, yield)
		return true
	}
	var cursors []*cursor // in the order of the keys that they have come to
	for _, value := range values {
		c := &cursor{snapshot: s, index: i, value: value, prefix: prefix, next: max(prefix, from), chunk: firstChunk}
		if c.fill() {
			cursors = append(cursors, c)
		}
	}
	slices.SortFunc(cursors, func(a, b *cursor) int { return byKey(a.read[0], b.read[0]) })
	for last := ""; len(cursors) > 0; {
		c := cursors[0]
		e := c.read[0]
		if e.Key != last && !yield(e) {
			break
		}
		last = e.Key
		if c.read = c.read[1:]; len(c.read) == 0 && !c.fill() {
			cursors = cursors[1:]
			continue
		}
		next := c.read[0].Key
		at := sort.Search(len(cursors)-1, func(i int) bool { return cursors[i+1].read[0].Key >= next })
		copy(cursors, cursors[1:at+1])
		cursors[at] = c
	}
	return true
}

// CountIndex returns how many elements the named index has under the values at most, in
// the range that RangeIndexAny reads. An element under two of the values counts twice, and
// so does one that an earlier version has in another state than the latest one.
func (s *Snapshot) CountIndex(index string, values []string, prefix, from string) (n int) {
	i := s.base.trees.index(index)
	if i < 0 {
		return 0
	}
	for _, value := range values {
		n += s.base.trees.byIndex[i].count(hashOf(value), prefix, from)
		if s.older != nil {
			n += len(s.older.indexed(s.base.trees.indexes, i, value))
		}
	}
	return n
}

// A cursor reads more and more elements ahead: a short range is not read far beyond its
// end, and a long one costs few descents into the tree.
const (
	firstChunk = 8
	lastChunk  = 256
)

// cursor reads the elements that an index has under one value, chunk by chunk.
type cursor struct {
	snapshot      *Snapshot
	index         int
	value, prefix string
	next          string // no element below it is left to read
	chunk         int
	read          []*Element // in key order
	buffer        []*Element // the memory that read is a part of
}

// fill reads the next chunk and returns false at the end of the range.
func (c *cursor) fill() bool {
	if c.chunk == 0 {
		return false
	}
	c.buffer = slices.Grow(c.buffer[:0], c.chunk)
	c.read = c.buffer
	c.snapshot.rangeIndex(c.index, c.value, c.prefix, c.next, func(e *Element) bool {
		c.read = append(c.read, e)
		return len(c.read) < c.chunk
	})
	if len(c.read) < c.chunk {
		c.chunk = 0 // that was all
	} else {
		c.next = c.read[len(c.read)-1].Key + "\x00"
		c.chunk = min(4*c.chunk, lastChunk)
	}
	return len(c.read) > 0
}

// All returns all elements in key order. The slice is built by the first call and shared
// from then on, also by snapshots of other resourceVersions with the same elements: the
// caller must not write or append to it.
func (s *Snapshot) All() []*Element {
	row := &s.base.flat
	if s.older != nil {
		row = &s.flat
	}
	if flat := row.Load(); flat != nil {
		return *flat
	}
	flat := make([]*Element, 0, s.Len())
	s.Range("", "", func(e *Element) bool {
		flat = append(flat, e)
		return true
	})
	flat = slices.Clip(flat)
	row.Store(&flat) // as good as what another reader may have stored
	return flat
}

// Covers reports whether the keys of all elements begin with the prefix. For an earlier
// version, elements that were written later count.
func (s *Snapshot) Covers(prefix string) bool {
	covers := func(first, last *Element) bool {
		return strings.HasPrefix(first.Key, prefix) && strings.HasPrefix(last.Key, prefix)
	}
	last := s.base.trees.primary.last()
	if last == nil || !covers(s.base.trees.primary.root.entries[0].element, last) {
		return false
	}
	return s.older == nil || len(s.older.elements) == 0 || covers(s.older.elements[0], s.older.elements[len(s.older.elements)-1])
}

// Count returns the number of elements that Range would yield, without walking over them.
func (s *Snapshot) Count(prefix, from string) int {
	n := s.base.trees.primary.count(0, prefix, from)
	if o := s.older; o != nil {
		n += countKeys(o.deleted, prefix, from) - countKeys(o.added, prefix, from)
	}
	return n
}

// Mark is what Retained must know of a snapshot. It does not refer to the snapshot.
type Mark struct {
	// Position is that of the first event that the snapshot's trees do not contain.
	// Snapshots with the same position share all their memory.
	Position Position

	bytes      int64 // of the snapshot's elements
	objects    int
	superseded int64 // Stats.Superseded when the snapshot was made
}

// Estimates, in bytes: of the tree nodes that applying one event copies while a
// snapshot shares them, and of the memory that the trees take for one element
// at most.
const (
	copiedPerEvent = 4 << 10
	treePerElement = 64
)

// Mark returns the mark of the trees that the snapshot is made of.
func (s *Snapshot) Mark() Mark { return s.base.mark }

// Retained estimates the memory that several snapshots together keep beyond the
// state's. The zero value is the estimate for no snapshots.
type Retained struct{ superseded, bytes, copied, trees int64 }

// With returns the estimate with one more snapshot. now are the state's statistics.
func (k Retained) With(m Mark, now Stats) Retained {
	return Retained{
		superseded: max(k.superseded, now.Superseded-m.superseded),
		bytes:      k.bytes + m.bytes,
		copied:     max(k.copied, int64(now.Next-m.Position)*copiedPerEvent),
		trees:      k.trees + int64(m.objects)*treePerElement,
	}
}

// Bytes returns the estimate in bytes: the elements that have left the state
// since the oldest snapshot, but no more than all snapshots have, and the tree
// nodes likewise.
func (k Retained) Bytes() int64 { return min(k.superseded, k.bytes) + min(k.copied, k.trees) }
