// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// syntax is how a format puts the items of a list together.
type syntax int

const (
	jsonSyntax syntax = iota
	protobufSyntax
)

// frame is what an encoder writes around the items of one list. A frame is
// learnt from two encodings of the list: one without items, and one with one
// item.
type frame struct {
	syntax syntax
	// head is what precedes the items and tail what follows them. In protobuf, the
	// items end a field, envelope is what precedes the length of that field, and
	// head is the field's content.
	envelope, head, tail []byte
}

// newFrame returns the frame of a list, and the bytes of its item, from the
// list's encodings without items and with one; false if they do not look like
// that. The frame refers to the bytes of empty, the item to those of one.
func newFrame(s syntax, empty, one []byte) (f *frame, item []byte, ok bool) {
	if s == protobufSyntax {
		envelope, head, tail, ok := openEnvelope(empty)
		if !ok {
			return nil, nil, false
		}
		f = &frame{syntax: s, envelope: envelope, head: head, tail: tail}
	} else {
		at := commonPrefix(empty, one)
		// An item and the end of the items differ in their first byte, so that what
		// is common ends where the items begin.
		if at == len(empty) || empty[at] != ']' {
			return nil, nil, false
		}
		f = &frame{syntax: s, head: empty[:at], tail: empty[at:]}
	}
	item, ok = f.items(one)
	return f, item, ok && len(item) > 0
}

// items returns what stands within the frame in the encoding of a list, false
// if the frame is another one.
func (f *frame) items(encoded []byte) ([]byte, bool) {
	if f.syntax == protobufSyntax {
		envelope, content, tail, ok := openEnvelope(encoded)
		if !ok || !bytes.Equal(envelope, f.envelope) || !bytes.Equal(tail, f.tail) {
			return nil, false
		}
		return bytes.CutPrefix(content, f.head)
	}
	rest, ok := bytes.CutPrefix(encoded, f.head)
	if !ok {
		return nil, false
	}
	return bytes.CutSuffix(rest, f.tail)
}

// beginning returns what precedes items of the given length in all, in bytes.
func (f *frame) beginning(length int) []byte {
	if f.syntax != protobufSyntax {
		return f.head
	}
	made := make([]byte, 0, len(f.envelope)+binary.MaxVarintLen64+len(f.head))
	made = append(made, f.envelope...)
	made = binary.AppendUvarint(made, uint64(len(f.head)+length))
	return append(made, f.head...)
}

// The envelope of a Kubernetes object in protobuf: four bytes, and a
// runtime.Unknown, of which field 2 is the object.
var envelopeMagic = []byte("k8s\x00")

const envelopeContent = 2

// openEnvelope returns an object in its envelope, what precedes the object's
// length, and what follows the object.
func openEnvelope(encoded []byte) (before, content, after []byte, ok bool) {
	rest, ok := bytes.CutPrefix(encoded, envelopeMagic)
	for ok && len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			break
		}
		value := rest[n:]
		if number == envelopeContent && kind == protowire.BytesType {
			content, m := protowire.ConsumeBytes(value)
			if m < 0 {
				break
			}
			return encoded[:len(encoded)-len(value)], content, value[m:], true
		}
		m := protowire.ConsumeFieldValue(number, kind, value)
		if m < 0 {
			break
		}
		rest = value[m:]
	}
	return nil, nil, nil, false
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
