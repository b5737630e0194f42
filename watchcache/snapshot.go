// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Snapshot is all elements at one resourceVersion, in the order of their keys.
// It is immutable and safe for concurrent use (W2, W5); whoever holds one
// keeps its elements in memory.
type Snapshot struct {
	rv      uint64
	next    Position
	indexes []Index
	trees   trees

	// flat is what All returns, nil until it was asked for. Like the encodings
	// of an element it adds nothing to what the snapshot says.
	flat atomic.Pointer[[]*Element]

	// clone guards trees.clone, which published trees allow once at a time. All
	// snapshots over the same trees share it.
	clone *sync.Mutex
}

func newCloneLock() *sync.Mutex { return new(sync.Mutex) }

// RV returns the resourceVersion that the snapshot shows.
func (s *Snapshot) RV() uint64 { return s.rv }

// Next returns the position of the first event that the snapshot does not
// contain: a watcher that was given the snapshot continues there.
func (s *Snapshot) Next() Position { return s.next }

// Len returns the number of elements.
func (s *Snapshot) Len() int { return s.trees.primary.Len() }

// Get returns the element with the key, nil if there is none.
func (s *Snapshot) Get(key string) *Element {
	found, _ := s.trees.primary.Get(item{key: key})
	return found.element
}

// Range calls yield for each element whose key starts with prefix and is not
// below from, in key order, until yield returns false.
func (s *Snapshot) Range(prefix, from string, yield func(*Element) bool) {
	s.trees.primary.AscendGreaterOrEqual(item{key: max(prefix, from)}, func(i item) bool {
		return strings.HasPrefix(i.key, prefix) && yield(i.element)
	})
}

// RangeIndex is Range over the elements that the named index has under value.
// It returns false, and calls nothing, if there is no such index.
func (s *Snapshot) RangeIndex(index, value, prefix, from string, yield func(*Element) bool) bool {
	for i := range s.indexes {
		if s.indexes[i].Name != index {
			continue
		}
		start := indexItem{value: value, key: max(prefix, from)}
		s.trees.byIndex[i].AscendGreaterOrEqual(start, func(i indexItem) bool {
			return i.value == value && strings.HasPrefix(i.key, prefix) && yield(i.element)
		})
		return true
	}
	return false
}

// undo returns the snapshot as it was before events, which are the window's
// events up to the snapshot, oldest first.
func (s *Snapshot) undo(events []*Event, rv uint64) *Snapshot {
	s.clone.Lock()
	cloned := s.trees.clone()
	s.clone.Unlock()
	scratch := make([]string, 0, valuesRoom)
	for i := len(events) - 1; i >= 0; i-- {
		e := events[i]
		after := e.Element
		if e.Type == Deleted {
			after = nil
		}
		cloned.set(s.indexes, e.Previous, after, scratch)
	}
	next := s.next
	if len(events) > 0 {
		next = events[0].Position
	}
	return &Snapshot{rv: rv, next: next, indexes: s.indexes, trees: cloned, clone: newCloneLock()}
}
