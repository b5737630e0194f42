// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"io"
)

// deferred is the missing part of a list that is about to be written. Its chunks are made
// in batches when their turn comes: only one batch of a list that does not fit into the
// budget is in memory, and kept chunks are not encoded again.
type deferred struct {
	encoder *templateEncoder
	// whole is the server's own encoder, for the case that a batch can't be made: the
	// bytes written until then are the beginning of its output.
	whole encodeTo
}

// encodeTo writes one list.
type encodeTo = func(io.Writer) error

// leastKept is which part of a list has to be there for the rest to be made while the
// list is written: with less, the server's own encoder costs no more.
const leastKept = 16

// laterPossible reports whether the chunks that parts lack can be made while the list is
// written. The format needs no length of the whole before the first item, the server
// compresses the list whatever the rest's length, and enough is there to be worth it.
func (f *format) laterPossible(parts []part) bool {
	if f.syntax != jsonSyntax || !f.proven.Load() || checkEach {
		return false
	}
	length, items, there := 0, 0, 0
	for i := range parts {
		p := &parts[i]
		items += len(p.elements)
		if p.chunk != nil {
			length += p.chunk.length()
			there += len(p.elements)
		}
	}
	return length > compressedFrom && there >= items/leastKept
}

// proveSome compares the first parts of a list, which have chunks, with the output of the
// server's own encoder for a list of their items: a list that does not fit is never in
// memory as a whole.
func (t *templateEncoder) proveSome(a *assembly, parts int) {
	if a.format.proven.Load() {
		return
	}
	some := &assembly{format: a.format, frame: a.frame, separator: a.separator, parts: a.parts[:parts]}
	last := &some.parts[parts-1]
	positions := make([]int, last.first+len(last.elements))
	for i := range positions {
		positions[i] = i
	}
	a.format.prove(some.writePlain, func(w io.Writer) error {
		list, err := t.subset(positions)
		if err != nil {
			return err
		}
		return t.stock(list, w)
	})
}

// make makes the chunk of a part, and of some after it.
func (d *deferred) make(a *assembly, at int) error {
	_, _, err := d.encoder.batch(a, at)
	return err
}

// writeFrom writes the list from a byte on.
func (d *deferred) writeFrom(w io.Writer, begin int) error {
	return d.whole(&skipping{to: w, left: begin})
}

// deflatedFrom returns the items of the list from a byte on, compressed as one.
func (d *deferred) deflatedFrom(begin int, tail []byte) (*deflated, error) {
	var b bytes.Buffer
	if err := d.writeFrom(&b, begin); err != nil {
		return nil, err
	}
	items, ok := bytes.CutSuffix(b.Bytes(), tail)
	if !ok {
		return nil, errFrame
	}
	return deflate(items), nil
}

// skipping is a writer that leaves out the first bytes.
type skipping struct {
	to   io.Writer
	left int
}

// Write implements io.Writer.
func (s *skipping) Write(p []byte) (int, error) {
	skip := min(s.left, len(p))
	s.left -= skip
	if skip == len(p) {
		return len(p), nil
	}
	n, err := s.to.Write(p[skip:])
	return skip + n, err
}
