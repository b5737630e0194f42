// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"container/heap"
	"slices"
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
	return s.older.get(key)
}

// Range calls yield for each element whose key starts with prefix and is not
// below from, in key order, until yield returns false.
func (s *Snapshot) Range(prefix, from string, yield func(*Element) bool) {
	var older []*Element
	if s.older != nil {
		older = s.older.elements
	}
	s.rangeTree(s.base.trees.primary, 0, older, prefix, from, yield)
}

// rangeTree is Range over the elements that a tree has under the hash, and over older.
func (s *Snapshot) rangeTree(tree *btree, hash uint64, older []*Element, prefix, from string, yield func(*Element) bool) {
	from = max(prefix, from)
	if s.older == nil {
		tree.under(hash, from, func(e *Element) bool { return strings.HasPrefix(e.Key, prefix) && yield(e) })
		return
	}
	m := overlaid{older: elementsFrom(older, from), rv: s.rv, prefix: prefix, yield: yield}
	tree.under(hash, from, m.take)
	m.finish()
}

// RangeIndex is Range over the elements that the named index has under value.
// RangeIndex returns false, without a call of yield, if there is no such index.
func (s *Snapshot) RangeIndex(index, value, prefix, from string, yield func(*Element) bool) bool {
	i := s.base.trees.index(index)
	if i < 0 {
		return false
	}
	s.rangeIndex(i, value, prefix, from, yield)
	return true
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

// rangeIndex is RangeIndex by the number of the index.
func (s *Snapshot) rangeIndex(index int, value, prefix, from string, yield func(*Element) bool) {
	var older []*Element
	if s.older != nil {
		older = s.older.indexed(s.base.trees.indexes, index, value)
	}
	s.rangeTree(s.base.trees.byIndex[index], hashOf(value), older, prefix, from, yield)
}

// RangeIndexAny is RangeIndex over several values: each element once, in key order.
func (s *Snapshot) RangeIndexAny(index string, values []string, prefix, from string, yield func(*Element) bool) bool {
	if len(values) == 1 {
		return s.RangeIndex(index, values[0], prefix, from, yield)
	}
	i := s.base.trees.index(index)
	if i < 0 {
		return false
	}
	var m merge
	for _, value := range values {
		c := &cursor{snapshot: s, index: i, value: value, prefix: prefix, next: max(prefix, from), chunk: firstChunk}
		if c.fill() {
			heap.Push(&m, c)
		}
	}
	last := ""
	for len(m) > 0 {
		e := m.take()
		if e.Key != last && !yield(e) {
			break
		}
		last = e.Key
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
	read          []*Element // in key order; the first is the cursor's head
	buffer        []*Element // the memory that read is a part of
}

// fill reads the next chunk and returns false at the end of the range.
func (c *cursor) fill() bool {
	if c.chunk == 0 {
		return false
	}
	if cap(c.buffer) < c.chunk {
		c.buffer = make([]*Element, 0, c.chunk)
	}
	c.read = c.buffer[:0]
	c.snapshot.rangeIndex(c.index, c.value, c.prefix, c.next, func(e *Element) bool {
		c.read = append(c.read, e)
		return len(c.read) < c.chunk
	})
	switch {
	case len(c.read) < c.chunk:
		c.chunk = 0 // that was all
	default:
		c.next = c.read[len(c.read)-1].Key + "\x00"
		c.chunk = min(4*c.chunk, lastChunk)
	}
	return len(c.read) > 0
}

// merge is a heap of cursors by the key of their heads; none is empty.
type merge []*cursor

func (m merge) Len() int           { return len(m) }
func (m merge) Less(i, j int) bool { return m[i].read[0].Key < m[j].read[0].Key }
func (m merge) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *merge) Push(c any)        { *m = append(*m, c.(*cursor)) }

// Pop implements heap.Interface.
func (m *merge) Pop() any {
	last := len(*m) - 1
	c := (*m)[last]
	(*m)[last], *m = nil, (*m)[:last]
	return c
}

// take removes and returns the element with the lowest key.
func (m *merge) take() *Element {
	first := (*m)[0]
	e := first.read[0]
	if first.read = first.read[1:]; len(first.read) > 0 || first.fill() {
		heap.Fix(m, 0)
	} else {
		heap.Pop(m)
	}
	return e
}

// All returns all elements in key order. The slice is built by the first call and shared
// from then on, also by snapshots of other resourceVersions with the same elements: the
// caller must not write or append to it.
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
	if s.older == nil || len(s.older.elements) == 0 {
		return true
	}
	older := s.older.elements
	return covers(older[0], older[len(older)-1])
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
