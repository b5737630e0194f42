// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"io"
	"slices"
	"unsafe"
)

// keptRows is the rows of a Table that have the metadata of one chunk, compressed,
// with what the rows have beside the metadata. Cells are made for each list, and
// hardly ever differ from those of the list before: an age of hours changes once
// an hour. The rows are used for a list whose cells are the same to the byte, so
// that nothing can be stale. keptRows never changes.
type keptRows struct {
	// cells has the rows up to where their objects are, next to each other; ends has
	// where each of them ends.
	cells []byte
	ends  []int
	// deflated has the rows with separators between them.
	deflated *deflated
}

// has reports whether these are the rows with such cells, of which ends are
// counted from base.
func (r *keptRows) has(cells []byte, ends []int, base int) bool {
	return r != nil && bytes.Equal(r.cells, cells) && slices.EqualFunc(r.ends, ends, func(own, other int) bool { return own == other-base })
}

// size is the memory that r takes, in bytes.
func (r *keptRows) size() int64 {
	if r == nil {
		return 0
	}
	return int64(unsafe.Sizeof(*r)) + int64(cap(r.cells)) + int64(cap(r.ends))*int64(unsafe.Sizeof(0)) + r.deflated.size()
}

// writeMember writes what follows the beginning of the table, compressed.
func (t *keptTable) writeMember(w io.Writer, begin []byte) error {
	var rows bytes.Buffer
	m := &member{
		begin: begin, separator: t.separator, tail: t.frame.tail, chunks: len(t.metadata.parts),
		deflated: func(i int) (*deflated, error) {
			defer t.metadata.release(&t.metadata.parts[i])
			return t.deflated(&t.metadata.parts[i], &rows)
		},
	}
	defer t.metadata.store.share.Settle()
	if checkEach {
		return m.writeProven(w, t.writePlain)
	}
	return m.write(w)
}

// deflated returns the rows of a part, compressed. They are kept from the second
// Table on that needs them so, with the cells that they have now.
func (t *keptTable) deflated(p *part, rows *bytes.Buffer) (*deflated, error) {
	begin, ends := 0, t.ends[p.first:p.first+len(p.elements)]
	if p.first > 0 {
		begin = t.ends[p.first-1]
	}
	cells := t.cells[begin:ends[len(ends)-1]]
	store := t.metadata.store
	again := store.usedRows(p.chunk)
	if kept := p.chunk.rows.Load(); kept.has(cells, ends, begin) {
		return kept.deflated, nil
	}
	plain, err := t.metadata.plain(p)
	if err != nil {
		return nil, err
	}
	rows.Reset()
	for at := range p.elements {
		if at > 0 {
			rows.Write(t.separator)
		}
		t.appendRow(rows, p, at, plain)
	}
	made := &keptRows{deflated: deflate(rows.Bytes())}
	if again {
		made.cells, made.ends = bytes.Clone(cells), slices.Clone(ends)
		for i := range made.ends {
			made.ends[i] -= begin
		}
		store.keepRows(p.chunk, made)
	}
	return made.deflated, nil
}

// usedRows records that a list was made of the rows of a chunk, and reports whether
// it was not the first.
func (s *Store) usedRows(c *chunk) bool { return c.usedRows.Swap(s.lists.Load()) != never }

// keepRows keeps rows with a chunk, in place of earlier ones, if there is room.
func (s *Store) keepRows(c *chunk, r *keptRows) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.queued == nil {
		return
	}
	more := r.size() - c.rows.Load().size()
	if s.makeRoom(more, false) && c.queued != nil {
		s.share.Add(more)
		c.rows.Store(r)
	}
}

// ageRows drops the rows of a chunk if no list after the given one has used them.
func (s *Store) ageRows(c *chunk, oldest int64) {
	if r := c.rows.Load(); r != nil && c.usedRows.Load() <= oldest {
		c.rows.Store(nil)
		s.share.Add(-r.size())
	}
}
