// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// table makes the Table of the list, and returns what writes it. Cells depend on
// the time, an age for example, so that they are made and encoded for every
// request; the metadata beside them, which is most of a row, is kept.
func (m *forming) table() (func(io.Writer) error, error) {
	table, err := m.form.Table(m.form.ctx, m.list)
	if err != nil {
		return nil, err
	}
	if m.syntax != jsonSyntax || table == nil {
		return nil, errForm
	}
	whole := func(w io.Writer) error { return m.wholeTable(table, w) }
	noted, items := m.noted()
	if noted == nil || !rowsOf(table, items) {
		return whole, nil
	}
	f := m.serializer.format(formatID{encoder: "table:" + m.encoder.Identifier(), list: reflect.TypeOf(m.list)}, m.syntax)
	if f.refused.Load() {
		return whole, nil
	}
	made, err := m.keptTable(table, noted, items)
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
func (m *forming) wholeTable(table *metav1.Table, w io.Writer) error {
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

// proveTable compares the table with what the server's own encoder makes of it, some
// rows at a time: the encoder needs several times the memory of what it encodes at
// once. A format that differs is refused.
func (m *forming) proveTable(f *format, table *metav1.Table, made *keptTable) bool {
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

// keptTable is a Table about to be written: what stands around the rows, their
// cells, and the chunks with the metadata.
type keptTable struct {
	frame     *frame
	separator []byte // between rows
	// cells has the rows up to where the object is, next to each other; ends has
	// where each of them ends.
	cells    []byte
	ends     []int
	metadata *assembly
	response *response // nil if the table is not for one that may be compressed
}

// noObject is how a row ends that has no object.
const noObject = `"object":null}`

// keptTable returns the Table of the list with metadata from chunks, which are made
// of some objects at a time whether they are worth keeping or not: the server's own
// encoder of a Table needs several times the memory of the whole. keptTable returns
// nil if the metadata's format can't be put together.
func (m *forming) keptTable(table *metav1.Table, noted *listing, items reflect.Value) (*keptTable, error) {
	metadata := m.metadataFormat(m.syntax)
	if metadata.refused.Load() {
		return nil, nil
	}
	parts := cut(noted.elements)
	noted.store.lookUp(metadata, parts, false)
	metadataLearner := m.learner(items, m.stock)
	metadataLearner.store, metadataLearner.whole = noted.store, true
	filled, err := metadataLearner.assemble(metadata, parts, false)
	if err != nil {
		return nil, err
	}
	rows := &learner{stock: m.stock, subset: func(positions []int) (runtime.Object, error) {
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
	filled.store = noted.store
	made := &keptTable{frame: frame, separator: separator, metadata: filled, response: noted.response}
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

// write writes the table, compressed if w is that of a response which is to be.
func (t *keptTable) write(w io.Writer) error {
	begin, length := t.beginning()
	t.metadata.once = !checkEach
	return t.response.write(w, begin, length, t)
}

// beginning returns what precedes the rows, and the length of the whole table.
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

// writeItems writes what follows the beginning of the table.
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
