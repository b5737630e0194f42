// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"strings"
)

// index returns the number of the named index, -1 if there is none.
func (s *Snapshot) index(name string) int {
	return slices.IndexFunc(s.indexes, func(i Index) bool { return i.Name == name })
}

// rangeIndex is RangeIndex by the number of the index.
func (s *Snapshot) rangeIndex(index int, value, prefix, from string, yield func(*Element) bool) {
	start := indexItem{value: value, key: max(prefix, from)}
	if s.older == nil {
		s.base.trees.byIndex[index].AscendGreaterOrEqual(start, func(i indexItem) bool {
			return i.value == value && strings.HasPrefix(i.key, prefix) && yield(i.element)
		})
		return
	}
	m := overlaid{older: s.older.indexed(s.indexes, index, value, start.key), rv: s.rv, prefix: prefix, yield: yield}
	s.base.trees.byIndex[index].AscendGreaterOrEqual(start, func(i indexItem) bool {
		return i.value == value && m.take(i.key, i.element)
	})
	m.finish()
}

// RangeIndexAny is Range over the elements that the named index has under any
// of the values: each once, in key order. RangeIndexAny returns false, without
// a call of yield, if there is no such index.
func (s *Snapshot) RangeIndexAny(index string, values []string, prefix, from string, yield func(*Element) bool) bool {
	if len(values) == 1 {
		return s.RangeIndex(index, values[0], prefix, from, yield)
	}
	i := s.index(index)
	if i < 0 {
		return false
	}
	var m merge
	for _, value := range values {
		m.add(&cursor{snapshot: s, index: i, value: value, prefix: prefix, next: max(prefix, from), chunk: firstChunk})
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

// CountIndex returns the number of entries that the named index has under the
// values, in the range that RangeIndexAny reads, but no more than most. An
// element under two of the values counts twice.
func (s *Snapshot) CountIndex(index string, values []string, prefix, from string, most int) int {
	n := 0
	for _, value := range values {
		if n >= most {
			break
		}
		s.RangeIndex(index, value, prefix, from, func(*Element) bool { n++; return n < most })
	}
	return n
}

// CountUpTo returns the number of elements that Range would yield, but no more
// than most.
func (s *Snapshot) CountUpTo(prefix, from string, most int) int {
	n := 0
	if most > 0 {
		s.Range(prefix, from, func(*Element) bool { n++; return n < most })
	}
	return n
}

// The number of elements that a cursor reads ahead grows from the first to the
// last of these, so that a short range is not read far beyond its end, and a
// long one costs few descents into the tree.
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

func (m *merge) add(c *cursor) {
	if !c.fill() {
		return
	}
	*m = append(*m, c)
	for i := len(*m) - 1; i > 0 && (*m).less(i, (i-1)/2); i = (i - 1) / 2 {
		(*m)[i], (*m)[(i-1)/2] = (*m)[(i-1)/2], (*m)[i]
	}
}

// take removes and returns the element with the lowest key.
func (m *merge) take() *Element {
	first := (*m)[0]
	e := first.read[0]
	first.read = first.read[1:]
	if len(first.read) == 0 && !first.fill() {
		last := len(*m) - 1
		(*m)[0] = (*m)[last]
		(*m)[last] = nil
		*m = (*m)[:last]
	}
	m.down()
	return e
}

// down moves the first cursor to where it belongs.
func (m merge) down() {
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < len(m) && m.less(child+1, child) {
			child++
		}
		if child >= len(m) || !m.less(child, i) {
			return
		}
		m[i], m[child] = m[child], m[i]
		i = child
	}
}

func (m merge) less(i, j int) bool { return m[i].read[0].Key < m[j].read[0].Key }
