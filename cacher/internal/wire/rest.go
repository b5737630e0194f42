// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"io"
)

// rest is what is missing of a list that is about to be written. Its chunks are made
// batch by batch when their turn comes, so that of a list which does not fit into what
// is kept only a batch is in memory, and what fits is not encoded again.
type rest struct {
	learner *learner
	// whole is the server's own encoder, for the case that a batch can't be made: what
	// was written until then is the beginning of what whole writes.
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

// proveSome compares the first parts of a list, which have chunks, with what the
// server's own encoder makes of a list of their items: a list that does not fit is
// never there as a whole.
func (l *learner) proveSome(a *assembly, parts int) {
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
		list, err := l.subset(positions)
		if err != nil {
			return err
		}
		return l.stock(list, w)
	})
}

// make makes the chunk of a part, and of some after it.
func (r *rest) make(a *assembly, at int) error {
	_, _, err := r.learner.batch(a, at)
	return err
}

// writeFrom writes the list from a byte on.
func (r *rest) writeFrom(w io.Writer, begin int) error {
	return r.whole(&skipping{to: w, left: begin})
}

// deflatedFrom returns the items of the list from a byte on, compressed as one.
func (r *rest) deflatedFrom(begin int, tail []byte) (*deflated, error) {
	var b bytes.Buffer
	if err := r.writeFrom(&b, begin); err != nil {
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
