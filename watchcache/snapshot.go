// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"sort"
	"strings"
	"sync/atomic"
)

// Snapshot is all elements at one resourceVersion, in key order. It is immutable (W2, W5). A
// reference to it keeps its elements in memory.
type Snapshot struct {
	rv    uint64
	next  Position
	base  *base
	older *overlay // nil if base is the version itself
	// kept is the cache to which State.PinSnapshot adds the snapshot.
	kept *keptSnapshots
	// flat is the result of All if there is an overlay; nil before the first call.
	flat atomic.Pointer[[]*Element]
}

// base holds the immutable trees of one or more snapshots.
type base struct {
	trees trees
	mark  Mark
	// flat is the result of Snapshot.All without an overlay; nil before the first call.
	flat atomic.Pointer[[]*Element]
}

// RV returns the resourceVersion of the snapshot.
func (s *Snapshot) RV() uint64 { return s.rv }

// Next returns the position of the first event after the snapshot.
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
	newest := s.base.trees.primary.get(0, key)
	if s.older == nil || (newest != nil && newest.RV <= s.rv) {
		return newest
	}
	if from := elementsFrom(s.older.elements, key); len(from) > 0 && from[0].Key == key {
		return from[0]
	}
	return nil
}

// Range calls yield for the elements whose keys begin with prefix and are not below from, in key
// order, until yield returns false.
func (s *Snapshot) Range(prefix, from string, yield func(*Element) bool) {
	s.rangeIndex(-1, "", prefix, from, yield)
}

// RangeIndex is Range over the elements under value in the named index. It returns false, without
// calling yield, if there is no such index.
func (s *Snapshot) RangeIndex(index, value, prefix, from string, yield func(*Element) bool) bool {
	return s.RangeIndexAny(index, []string{value}, prefix, from, yield)
}

// Digest returns the digest of the snapshot's elements. For an earlier version, returned by
// State.At, it walks over all elements.
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

// rangeIndex is RangeIndex for the index-th index, and Range if index is -1.
func (s *Snapshot) rangeIndex(index int, value, prefix, from string, yield func(*Element) bool) {
	tree := s.base.trees.primary
	hash := uint64(0)
	if index >= 0 {
		tree = s.base.trees.byIndex[index]
		hash = hashOf(value)
	}
	from = max(prefix, from)
	if s.older == nil {
		tree.under(hash, from, func(e *Element) bool { return strings.HasPrefix(e.Key, prefix) && yield(e) })
		return
	}
	older := elementsFrom(s.older.indexed(s.base.trees.indexes, index, value), from)
	more := true
	tree.under(hash, from, func(e *Element) bool {
		if !strings.HasPrefix(e.Key, prefix) {
			return false
		}
		for more && len(older) > 0 && older[0].Key <= e.Key {
			more = yield(older[0])
			older = older[1:]
		}
		more = more && (e.RV > s.rv || yield(e))
		return more
	})
	for more && len(older) > 0 && strings.HasPrefix(older[0].Key, prefix) {
		more = yield(older[0])
		older = older[1:]
	}
}

// RangeIndexAny is RangeIndex over several values. It visits each element once, in key order.
func (s *Snapshot) RangeIndexAny(index string, values []string, prefix, from string, yield func(*Element) bool) bool {
	i := s.base.trees.index(index)
	if i < 0 {
		return false
	}
	if len(values) == 1 {
		s.rangeIndex(i, values[0], prefix, from, yield)
		return true
	}
	var cursors []*cursor // in the order of their next keys
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
		c.read = c.read[1:]
		if len(c.read) == 0 && !c.fill() {
			cursors = cursors[1:]
			continue
		}
		next := c.read[0].Key
		place := sort.Search(len(cursors)-1, func(i int) bool { return cursors[i+1].read[0].Key >= next })
		copy(cursors, cursors[1:place+1])
		cursors[place] = c
	}
	return true
}

// CountIndex returns an upper bound of the number of elements RangeIndexAny visits. It counts an
// element twice if it has two of the values, or if an earlier version has another state of it than
// the latest one.
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

// A cursor reads ahead in growing chunks: few elements beyond the end of a short range, and few
// descents into the tree for a long one.
const (
	firstChunk = 8
	lastChunk  = 256
)

// cursor reads the elements under one value of an index, chunk by chunk.
type cursor struct {
	snapshot      *Snapshot
	index         int
	value, prefix string
	next          string // the elements below it were read
	chunk         int
	read          []*Element // in key order
	buffer        []*Element // the memory of read
}

// fill reads the next chunk. It returns false at the end of the range.
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
		c.chunk = 0 // end of range
	} else {
		c.next = c.read[len(c.read)-1].Key + "\x00"
		c.chunk = min(4*c.chunk, lastChunk)
	}
	return len(c.read) > 0
}

// All returns all elements in key order. Caller must not write or append to the slice, which all
// callers share, also those of other snapshots with the same elements. The first call allocates it.
func (s *Snapshot) All() []*Element {
	shared := &s.base.flat
	if s.older != nil {
		shared = &s.flat
	}
	if flat := shared.Load(); flat != nil {
		return *flat
	}
	flat := make([]*Element, 0, s.Len())
	s.Range("", "", func(e *Element) bool {
		flat = append(flat, e)
		return true
	})
	flat = slices.Clip(flat)
	shared.Store(&flat) // a concurrent reader may have stored an equal slice
	return flat
}

// Covers reports whether the keys of all elements begin with prefix. For an earlier version it
// also considers elements written later.
func (s *Snapshot) Covers(prefix string) bool {
	has := func(e *Element) bool { return strings.HasPrefix(e.Key, prefix) }
	primary := s.base.trees.primary
	last := primary.last()
	if last == nil || !has(last) || !has(primary.root.entries[0].element) {
		return false
	}
	if s.older == nil || len(s.older.elements) == 0 {
		return true
	}
	return has(s.older.elements[0]) && has(s.older.elements[len(s.older.elements)-1])
}

// Count returns the number of elements in the range of Range, in logarithmic time.
func (s *Snapshot) Count(prefix, from string) int {
	n := s.base.trees.primary.count(0, prefix, from)
	if o := s.older; o != nil {
		n += countKeys(o.deleted, prefix, from) - countKeys(o.added, prefix, from)
	}
	return n
}

// Mark describes a snapshot for Retained. It does not keep the snapshot in memory.
type Mark struct {
	// Position is the position of the first event not contained in the snapshot's trees. Snapshots
	// with equal positions share all memory.
	Position Position

	bytes      int64 // of the snapshot's elements
	objects    int
	superseded int64 // Stats.Superseded at the time of the snapshot
}

// Estimates, in bytes: copiedPerEvent for the tree nodes copied per applied event while a snapshot
// shares them, treePerElement for the maximum memory of the trees per element.
const (
	copiedPerEvent = 4 << 10
	treePerElement = 64
)

// Mark returns the mark of the snapshot's trees.
func (s *Snapshot) Mark() Mark { return s.base.mark }

// Retained estimates the memory that several snapshots together keep beyond the state's. The zero
// value is the estimate for no snapshots.
type Retained struct{ superseded, bytes, copied, trees int64 }

// With returns the estimate including another snapshot. now are the state's current statistics.
func (k Retained) With(m Mark, now Stats) Retained {
	return Retained{
		superseded: max(k.superseded, now.Superseded-m.superseded),
		bytes:      k.bytes + m.bytes,
		copied:     max(k.copied, int64(now.Next-m.Position)*copiedPerEvent),
		trees:      k.trees + int64(m.objects)*treePerElement,
	}
}

// Bytes returns the estimate in bytes. The elements are those that have left the state since the
// oldest snapshot, limited to those of all snapshots; the tree nodes are limited in the same way.
func (k Retained) Bytes() int64 { return min(k.superseded, k.bytes) + min(k.copied, k.trees) }
