// SPDX-License-Identifier: Apache-2.0

package keptlists

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

// table returns a function that writes the Table of the list. Cells may depend on the time, e.g. an
// age, so they are encoded for every request. Metadata, most of a row, is kept.
func (m *representer) table() (func(io.Writer) error, error) {
	if m.syntax != jsonSyntax {
		return nil, errRepresentation
	}
	whole := !m.isLong()
	if items, ok := m.items(); ok {
		f := m.serializer.format(formatID{encoder: "table:" + m.wanted.Encoder.Identifier(), list: reflect.TypeOf(m.list)}, m.syntax)
		made, err := m.provenTable(f)
		if errors.Is(err, errFrame) {
			f.refuse(err)
		}
		if err == nil && made != nil {
			made.metadata.sending = true
			m.noted.release(items)
			return made.write, nil
		}
		whole = whole || f.refused.Load()
	}
	if !whole {
		return nil, errRepresentation // the server accounts for its memory
	}
	return func(w io.Writer) error {
		table, err := m.convert(m.list)
		if err != nil { // ConvertToTable's own error
			return err
		}
		return m.wholeTable(table, w)
	}, nil
}

// provenTable is keptTable, and compares the first Table of a format with the server's, of the same
// rows.
func (m *representer) provenTable(f *format) (*keptTable, error) {
	if !f.proven.Load() || checkEach {
		f.proving.Lock()
		defer f.proving.Unlock()
	}
	if f.proven.Load() && !checkEach {
		return m.keptTable(f, nil)
	}
	table, err := m.convert(m.list)
	if err != nil {
		return nil, err
	}
	made, err := m.keptTable(f, table)
	if errors.Is(err, errRepresentation) {
		f.refused.Store(true) // the TableConvertor does not return the items
	}
	if err != nil || made == nil || !f.proveLocked(made.writePlain, func(w io.Writer) error { return m.wholeTable(table, w) }) {
		return nil, err
	}
	return made, nil
}

func (m *representer) convert(list runtime.Object) (*metav1.Table, error) {
	table, err := m.wanted.Table(m.wanted.ctx, list)
	if err == nil && table == nil {
		err = errRepresentation
	}
	return table, err
}

func (m *representer) wholeTable(table *metav1.Table, w io.Writer) error {
	for i := range table.Rows {
		item, err := metadataOf(table.Rows[i].Object.Object)
		if err != nil {
			return err
		}
		table.Rows[i].Object.Object = item
	}
	return m.stock(table, w)
}

// keptTable is a Table about to be written.
type keptTable struct {
	frame *frame
	// cells holds the concatenated rows, each up to its object; ends has the end of each.
	cells    []byte
	ends     []int
	metadata *assembly
	rows     bytes.Buffer // reused for each chunk
}

// noObject ends an encoded row without an object.
const noObject = `"object":null}`

// keptTable returns the Table of the list with metadata from chunks, of the rows of of if given, or
// nil if it can't be assembled. It makes rows in batches, and metadata while writing, because the
// server's encoder needs several times the memory of the Table.
func (m *representer) keptTable(f *format, of *metav1.Table) (*keptTable, error) {
	own, ok := m.list.(metav1.ListInterface)
	metadata := m.metadataFormat()
	if !ok || f.refused.Load() || metadata.refused.Load() {
		return nil, nil
	}
	list := metadata.begin(m.noted, metadataItems(m.stock, own, m.noted.elements))
	list.compressed = false
	var err error
	if list.frame, err = list.items.learn(m.syntax); err != nil {
		return nil, err
	}
	pick := subsetOf(m.list, m.noted.elements)
	some := func(positions []int) (runtime.Object, error) {
		if of != nil {
			return withoutObjects(of, m.list, positions)
		}
		fewer, err := pick(positions)
		if err != nil {
			return nil, err
		}
		table, err := m.convert(fewer)
		if err != nil {
			return nil, err
		}
		return withoutObjects(table, fewer, upTo(len(positions)))
	}
	made := &keptTable{metadata: list}
	if made.frame, err = (&templateEncoder{stock: m.stock, subset: some}).learn(m.syntax); err != nil {
		return nil, err
	}
	return made, made.encodeCells(len(m.noted.elements), some)
}

// withoutObjects returns some rows of a Table without their objects.
func withoutObjects(table *metav1.Table, list runtime.Object, positions []int) (runtime.Object, error) {
	items, ok := itemsOf(list)
	if !ok || len(table.Rows) != items.Len() {
		return nil, errRepresentation
	}
	some := *table
	some.Rows = make([]metav1.TableRow, len(positions)) // must not be null if empty
	for i, at := range positions {
		row := table.Rows[at]
		if row.Object.Raw != nil || row.Object.Object != items.Index(at).Addr().Interface() {
			return nil, errRepresentation // not the items in order
		}
		row.Object.Object = nil
		some.Rows[i] = row
	}
	return &some, nil
}

// encodeCells encodes all rows without objects, before anything is written.
func (t *keptTable) encodeCells(rows int, some func(positions []int) (runtime.Object, error)) error {
	buffer := bytes.NewBuffer(make([]byte, 0, 128*rows))
	t.ends = make([]int, 0, rows)
	encoder := json.NewEncoder(buffer)
	for positions := range slices.Chunk(upTo(rows), batchItems) {
		table, err := some(positions)
		if err != nil {
			return err
		}
		for _, row := range table.(*metav1.Table).Rows {
			if err := encoder.Encode(&row); err != nil {
				return err
			}
			buffer.Truncate(buffer.Len() - 1) // the line feed
			if !bytes.HasSuffix(buffer.Bytes(), []byte(noObject)) {
				return errFrame
			}
			buffer.Truncate(buffer.Len() - len("null}"))
			t.ends = append(t.ends, buffer.Len())
		}
	}
	t.cells = bytes.Clone(buffer.Bytes()) // trims the capacity
	return nil
}

// tableBuffer is the approximate size of writes.
const tableBuffer = 64 << 10

// write writes the table, compressed if possible and long, counting existing chunks only: until
// metadata is kept, the server compresses.
func (t *keptTable) write(w io.Writer) error {
	length := len(t.cells)
	for i := range t.metadata.parts {
		if c := t.metadata.parts[i].chunk; c != nil {
			length += c.length()
		}
	}
	return t.metadata.response.write(w, t.frame.head, length > compressedFrom, t)
}

// writePlain writes the table uncompressed. After a first write as short as a streaming encoder's,
// the server compresses if long.
func (t *keptTable) writePlain(w io.Writer) error {
	head := t.frame.head
	first := min(1, len(head))
	if _, err := w.Write(head[:first]); err != nil {
		return err
	}
	return t.writeRows(w, head[first:])
}

func (t *keptTable) writeItems(w io.Writer) error { return t.writeRows(w, nil) }

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

const endOfRow = "}"

// appendRow appends cells and metadata of item at of the part.
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

// keptRows is the compressed rows of a Table for one chunk of metadata, valid for equal cells.
// Cells rarely change, e.g. an age of hours changes once an hour. Immutable.
type keptRows struct {
	// cells holds the concatenated rows, each up to its object. As "object" is a row's last member,
	// this determines where rows end.
	cells []byte
	// deflated includes separators.
	deflated *deflated
}

// rowsOverhead is the size of a keptRows without its bytes.
const rowsOverhead = 32

func (r *keptRows) size() int64 {
	if r == nil {
		return 0
	}
	return rowsOverhead + int64(cap(r.cells)) + r.deflated.size()
}

func (t *keptTable) writeMember(w io.Writer, begin []byte) error {
	return t.frame.writeMember(w, begin, len(t.metadata.parts), t.deflated)
}

// deflated returns the compressed rows of a part and keeps them with its chunk.
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
