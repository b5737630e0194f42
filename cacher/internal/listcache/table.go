// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"

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
	f := m.serializer.format(formatID{encoder: "table:" + m.wanted.Encoder.Identifier(), list: reflect.TypeOf(m.list)}, m.syntax)
	if f.refused.Load() {
		return whole, nil
	}
	made, err := m.keptTable(table)
	switch {
	case errors.Is(err, errFrame):
		f.refuse(err)
		return whole, nil
	case err != nil || made == nil:
		return whole, nil // which says so itself
	case !f.proven.Load() || checkEach:
		if !f.prove(made.writePlain, whole) {
			return whole, nil
		}
	}
	made.metadata.sending = true
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

// keptTable is a Table about to be written: its frame, cells, and the chunks with the
// metadata.
type keptTable struct {
	frame *frame
	// cells has the rows up to where the object is, next to each other; ends has
	// where each of them ends.
	cells    []byte
	ends     []int
	metadata *assembly
	rows     bytes.Buffer // reused for each chunk
}

// noObject is how a row ends that has no object.
const noObject = `"object":null}`

// keptTable returns the Table of the list with metadata from chunks, which are made
// of some objects at a time while the Table is written: the server's own
// encoder of a Table needs several times the memory of the whole. keptTable returns
// nil if the metadata's format can't be put together.
func (m *representer) keptTable(table *metav1.Table) (*keptTable, error) {
	own, ok := m.list.(metav1.ListInterface)
	if !ok {
		return nil, errRepresentation
	}
	metadata := m.metadataFormat()
	if metadata.refused.Load() {
		return nil, nil
	}
	list := metadata.begin(m.noted, metadataItems(m.stock, own, m.noted.elements))
	list.compressed = false
	var err error
	if list.frame, err = list.items.learn(m.syntax); err != nil {
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
	frame, err := rows.learn(m.syntax)
	if err != nil {
		return nil, err
	}
	made := &keptTable{frame: frame, metadata: list}
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

// write writes the table, compressed if the response to w must be. Only chunks that are there
// count for that: until metadata is kept, the server compresses.
func (t *keptTable) write(w io.Writer) error {
	length := len(t.cells)
	for i := range t.metadata.parts {
		if c := t.metadata.parts[i].chunk; c != nil {
			length += c.length()
		}
	}
	return t.metadata.response.write(w, t.frame.head, length > compressedFrom, t)
}

// writePlain writes the table. The first write is as short as that of a streaming
// encoder (streamingWrite), so that the server compresses the response if it is long.
func (t *keptTable) writePlain(w io.Writer) error {
	head := t.frame.head
	first := min(1, len(head))
	if _, err := w.Write(head[:first]); err != nil {
		return err
	}
	return t.writeRows(w, head[first:])
}

func (t *keptTable) writeItems(w io.Writer) error { return t.writeRows(w, nil) }

// writeRows writes the rows and the end of the table, after the rest of the beginning.
func (t *keptTable) writeRows(w io.Writer, before []byte) error {
	buffer := bytes.NewBuffer(make([]byte, 0, tableBuffer+tableBuffer/4))
	buffer.Write(before)
	for i := range t.metadata.parts {
		p := &t.metadata.parts[i]
		plain, err := t.metadata.plain(i)
		if err != nil {
			return err
		}
		for at := range p.elements {
			if i > 0 || at > 0 {
				buffer.Write(comma)
			}
			t.appendRow(buffer, p, at, plain)
			if buffer.Len() >= tableBuffer {
				if _, err := w.Write(buffer.Bytes()); err != nil {
					return err
				}
				buffer.Reset()
			}
		}
		t.metadata.release(i)
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
	to.Write(item[:len(item)-len(comma)])
	to.WriteString(endOfRow)
}

// keptRows is the compressed rows of a Table, with the metadata of one chunk. The cells of a
// list hardly ever differ from those of the list before: an age of hours changes once an hour.
// The rows are used only for equal cells, so that nothing can be stale. A keptRows never changes.
type keptRows struct {
	// cells has the rows up to where their objects are, next to each other. Where a row ends
	// follows from it: "object" is the last member of each.
	cells []byte
	// deflated has the rows with separators between them.
	deflated *deflated
}

// rowsOverhead is the size of a keptRows without its bytes.
const rowsOverhead = 32

// size is the memory that r takes, in bytes.
func (r *keptRows) size() int64 {
	if r == nil {
		return 0
	}
	return rowsOverhead + int64(cap(r.cells)) + r.deflated.size()
}

func (t *keptTable) writeMember(w io.Writer, begin []byte) error {
	return t.frame.writeMember(w, begin, len(t.metadata.parts), t.deflated)
}

// deflated returns the rows of a part, compressed, and keeps them with its chunk.
func (t *keptTable) deflated(i int) (*deflated, error) {
	c, err := t.metadata.chunk(i)
	if err != nil {
		return nil, err
	}
	defer t.metadata.release(i)
	p, begin := &t.metadata.parts[i], 0
	if p.first > 0 {
		begin = t.ends[p.first-1]
	}
	cells := t.cells[begin:t.ends[p.first+len(p.elements)-1]]
	if kept := c.content.Load().rows; kept != nil && bytes.Equal(kept.cells, cells) {
		return kept.deflated, nil
	}
	plain, err := t.metadata.plain(i)
	if err != nil {
		return nil, err
	}
	t.rows.Reset()
	for at := range p.elements {
		if at > 0 {
			t.rows.Write(comma)
		}
		t.appendRow(&t.rows, p, at, plain)
	}
	made := &keptRows{cells: bytes.Clone(cells), deflated: deflate(t.rows.Bytes())}
	t.metadata.store.complete(c, content{rows: made})
	return made.deflated, nil
}
