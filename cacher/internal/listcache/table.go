// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// table makes the Table of the list, and returns a function that writes it. Cells depend
// on the time, an age for example, so they are made and encoded for every request; the
// metadata, which is most of a row, is kept.
func (m *representer) table() (func(io.Writer) error, error) {
	table, err := m.wanted.Table(m.wanted.ctx, m.list)
	if err != nil {
		return nil, err
	}
	if m.syntax != jsonSyntax || table == nil {
		return nil, errRepresentation
	}
	whole := func(w io.Writer) error { return m.wholeTable(table, w) }
	items, ok := m.items()
	if !ok || !rowsOf(table, items) {
		return whole, nil
	}
	f := m.serializer.format(formatID{encoder: "table:" + m.encoder.Identifier(), list: reflect.TypeOf(m.list)}, m.syntax)
	if f.refused.Load() {
		return whole, nil
	}
	made, err := m.keptTable(table, items)
	switch {
	case errors.Is(err, errFrame):
		f.refuse(err)
		return whole, nil
	case err != nil || made == nil:
		return whole, nil // which says so itself
	case !f.proven.Load() || checkEach:
		if !m.proveTable(f, table, made) {
			return whole, nil
		}
	}
	return made.write, nil
}

// rowsOf reports whether the rows of a table are those of the items, in their
// order, and their objects are left to the encoder.
func rowsOf(table *metav1.Table, items reflect.Value) bool {
	if len(table.Rows) != items.Len() {
		return false
	}
	for i := range table.Rows {
		object := &table.Rows[i].Object
		if object.Raw != nil || object.Object == nil {
			return false
		}
		if value := reflect.ValueOf(object.Object); value.Kind() != reflect.Pointer || value.Pointer() != items.Index(i).Addr().Pointer() ||
			value.Type() != reflect.PointerTo(items.Type().Elem()) {
			return false
		}
	}
	return true
}

// wholeTable writes the table as the server does.
func (m *representer) wholeTable(table *metav1.Table, w io.Writer) error {
	made := *table
	if table.Rows != nil {
		made.Rows = make([]metav1.TableRow, len(table.Rows))
	}
	for i := range table.Rows {
		row := table.Rows[i]
		item, err := metadataOf(row.Object.Object)
		if err != nil {
			return err
		}
		row.Object.Object = item
		made.Rows[i] = row
	}
	return m.stock(&made, w)
}

// proveTable compares the table with the output of the server's own encoder, some rows at
// a time: the encoder needs several times the memory of its input. A format that differs
// is refused.
func (m *representer) proveTable(f *format, table *metav1.Table, made *keptTable) bool {
	parts := made.metadata.parts
	for len(parts) > 0 {
		n, rows := 0, 0
		for n < len(parts) && rows < batchItems {
			rows += len(parts[n].elements)
			n++
		}
		some, first := *table, parts[0].first
		some.Rows = table.Rows[first : first+rows]
		kept := func(w io.Writer) error { return made.writeRows(w, made.frame.head, parts[:n]) }
		if !f.sameAs(kept, func(w io.Writer) error { return m.wholeTable(&some, w) }) {
			return false
		}
		parts = parts[n:]
	}
	f.proven.Store(true)
	return true
}

// keptTable is a Table about to be written: its frame, cells, and the chunks with the
// metadata.
type keptTable struct {
	frame     *frame
	separator []byte // between rows
	// cells has the rows up to where the object is, next to each other; ends has
	// where each of them ends.
	cells    []byte
	ends     []int
	metadata *assembly
	response *compressedWriter // nil if the table is not for one that may be compressed
}

// noObject is how a row ends that has no object.
const noObject = `"object":null}`

// keptTable returns the Table of the list with metadata from chunks, which are made
// of some objects at a time whether they are worth keeping or not: the server's own
// encoder of a Table needs several times the memory of the whole. keptTable returns
// nil if the metadata's format can't be put together.
func (m *representer) keptTable(table *metav1.Table, items reflect.Value) (*keptTable, error) {
	metadata := m.metadataFormat(m.syntax)
	if metadata.refused.Load() {
		return nil, nil
	}
	parts := cut(m.noted.elements)
	m.noted.store.lookUp(metadata, parts, false)
	metadataEncoder := m.itemEncoder(items)
	metadataEncoder.store, metadataEncoder.whole = m.noted.store, true
	filled, err := metadataEncoder.assemble(metadata, parts, false)
	if err != nil {
		return nil, err
	}
	rows := &templateEncoder{stock: m.stock, subset: func(positions []int) (runtime.Object, error) {
		fewer := *table
		fewer.Rows = make([]metav1.TableRow, 0, len(positions))
		for _, at := range positions {
			row := table.Rows[at]
			row.Object = runtime.RawExtension{}
			fewer.Rows = append(fewer.Rows, row)
		}
		return &fewer, nil
	}}
	frame, separator, err := rows.learn(m.serializer.format(formatID{encoder: "rows:" + m.encoder.Identifier(), list: reflect.TypeOf(table)}, m.syntax))
	if err != nil {
		return nil, err
	}
	filled.store = m.noted.store
	made := &keptTable{frame: frame, separator: separator, metadata: filled, response: m.noted.response}
	return made, made.encodeCells(table.Rows)
}

// encodeCells encodes the rows without their objects. An error is found before
// anything was written.
func (t *keptTable) encodeCells(rows []metav1.TableRow) error {
	buffer := bytes.NewBuffer(make([]byte, 0, 128*len(rows)))
	t.ends = make([]int, len(rows))
	encoder := json.NewEncoder(buffer)
	for i := range rows {
		row := rows[i]
		row.Object = runtime.RawExtension{}
		if err := encoder.Encode(&row); err != nil {
			return err
		}
		buffer.Truncate(buffer.Len() - 1) // the line feed
		if !bytes.HasSuffix(buffer.Bytes(), []byte(noObject)) {
			return errFrame
		}
		buffer.Truncate(buffer.Len() - len("null}"))
		t.ends[i] = buffer.Len()
	}
	t.cells = buffer.Bytes()
	return nil
}

// tableBuffer is about how much of a Table is written at once, in bytes.
const tableBuffer = 64 << 10

// write writes the table, compressed if the response to w must be.
func (t *keptTable) write(w io.Writer) error {
	begin, length := t.beginning()
	t.metadata.once = !checkEach
	return t.response.write(w, begin, length, t)
}

// beginning returns the bytes before the rows, and the length of the whole table.
func (t *keptTable) beginning() (begin []byte, length int) { return t.frame.head, t.length() }

// length is how long the whole table is, in bytes.
func (t *keptTable) length() int {
	rows := len(t.ends)
	length := len(t.frame.head) + len(t.cells) + len(t.frame.tail) + (rows-1)*len(t.separator)
	for i := range t.metadata.parts {
		length += t.metadata.parts[i].chunk.length()
	}
	return length + rows*(len(endOfRow)-len(t.metadata.separator))
}

// writePlain writes the table. The first write is as short as that of a streaming
// encoder (streamingWrite), so that the response is compressed if it is long.
func (t *keptTable) writePlain(w io.Writer) error {
	head := t.frame.head
	first := min(1, len(head))
	if _, err := w.Write(head[:first]); err != nil {
		return err
	}
	return t.writeRows(w, head[first:], t.metadata.parts)
}

// writeItems writes the table after its beginning.
func (t *keptTable) writeItems(w io.Writer) error { return t.writeRows(w, nil, t.metadata.parts) }

// writeRows writes the rows of parts and the end of the table, after the rest of the beginning.
func (t *keptTable) writeRows(w io.Writer, before []byte, parts []part) error {
	buffer := bytes.NewBuffer(make([]byte, 0, tableBuffer+tableBuffer/4))
	buffer.Write(before)
	for i := range parts {
		p := &parts[i]
		plain, err := t.metadata.plain(p)
		if err != nil {
			return err
		}
		for at := range p.elements {
			if i > 0 || at > 0 {
				buffer.Write(t.separator)
			}
			t.appendRow(buffer, p, at, plain)
			if buffer.Len() >= tableBuffer {
				if _, err := w.Write(buffer.Bytes()); err != nil {
					return err
				}
				buffer.Reset()
			}
		}
		t.metadata.release(p)
	}
	buffer.Write(t.frame.tail)
	_, err := w.Write(buffer.Bytes())
	return err
}

// endOfRow follows the object of a row.
const endOfRow = "}"

// appendRow appends a row: its cells, and the metadata of the item at a position
// of a part, whose chunk has the plain bytes.
func (t *keptTable) appendRow(to *bytes.Buffer, p *part, at int, plain []byte) {
	begin := 0
	if row := p.first + at; row > 0 {
		begin = t.ends[row-1]
	}
	to.Write(t.cells[begin:t.ends[p.first+at]])
	item := p.chunk.item(plain, at)
	to.Write(item[:len(item)-len(t.metadata.separator)])
	to.WriteString(endOfRow)
}

// keptRows holds the compressed rows of a Table, with the metadata of one chunk. Cells
// are made for each list, but hardly ever differ from the list before: an age of hours
// changes once an hour. The rows are used only for a list whose cells are equal to the
// byte, so nothing can be stale. keptRows never changes.
type keptRows struct {
	// cells has the rows up to where their objects are, next to each other; ends has
	// where each of them ends.
	cells []byte
	ends  []int
	// deflated has the rows with separators between them.
	deflated *deflated
}

// has reports whether the rows have these cells; ends count from base.
func (r *keptRows) has(cells []byte, ends []int, base int) bool {
	return r != nil && bytes.Equal(r.cells, cells) && slices.EqualFunc(r.ends, ends, func(own, other int) bool { return own == other-base })
}

// rowsOverhead is the size of the struct keptRows alone, in bytes.
const rowsOverhead = 56

// size is the memory that r takes, in bytes.
func (r *keptRows) size() int64 {
	if r == nil {
		return 0
	}
	return rowsOverhead + int64(cap(r.cells)) + int64(cap(r.ends))*8 + r.deflated.size()
}

// writeMember writes the table after its beginning, compressed.
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
