// SPDX-License-Identifier: Apache-2.0

package keptlists

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
	eventSyntax // of watch events, which follow each other
)

var comma = []byte{','}

// separator returns the bytes between two items. Where an encoder writes others, the
// comparison of its first list shows that.
func (s syntax) separator() []byte {
	if s == jsonSyntax {
		return comma
	}
	return nil
}

// frame holds the bytes that an encoder writes around the items of one list.
type frame struct {
	syntax syntax
	// head is before the items, tail after them. In protobuf, the items end a field:
	// envelope is before the length of that field, and head begins the field's content.
	envelope, head, tail []byte
}

// newFrame returns the frame of a list from the list's encodings without items and with
// one; false if these do not look like that.
func newFrame(s syntax, empty, one []byte) (f *frame, ok bool) {
	if s == protobufSyntax {
		envelope, head, tail, ok := openEnvelope(empty)
		if !ok {
			return nil, false
		}
		f = &frame{syntax: s, envelope: envelope, head: head, tail: tail}
	} else {
		at := commonPrefix(empty, one)
		// An item and the end of the items differ in their first byte, so that what
		// is common ends where the items begin.
		if at == len(empty) || empty[at] != ']' {
			return nil, false
		}
		f = &frame{syntax: s, head: empty[:at], tail: empty[at:]}
	}
	item, ok := f.items(one)
	return f, ok && len(item) > 0
}

// items returns the bytes within the frame in the encoding of a list, false if the
// encoding has another frame.
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

// beginning returns the bytes before items with the given total length.
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
// runtime.Unknown, whose field 2 is the object.
var envelopeMagic = []byte("k8s\x00")

const envelopeContent = 2

// openEnvelope returns the object in an envelope, the bytes before the object's length,
// and the bytes after the object.
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

// cutter takes the items of a list apart, one after the other.
type cutter struct {
	syntax syntax
	rest   []byte // the items that were not taken yet, with separators between them
}

// next returns the bytes of the next item, false if there is none.
func (c *cutter) next() (item []byte, ok bool) {
	length := 0
	if c.syntax == protobufSyntax {
		length = lengthOfField(c.rest)
	} else {
		length = lengthOfJSON(c.rest)
	}
	if length <= 0 {
		return nil, false
	}
	item, c.rest = c.rest[:length], c.rest[length:]
	if len(c.rest) > 0 {
		c.rest, ok = bytes.CutPrefix(c.rest, c.syntax.separator())
		// Nothing may follow the last item, its separator least of all.
		return item, ok && len(c.rest) > 0
	}
	return item, true
}

// lengthOfField returns the length of the protobuf field at the beginning of b, 0 or less
// if there is none.
func lengthOfField(b []byte) int {
	_, kind, length := protowire.ConsumeField(b)
	if kind != protowire.BytesType {
		return 0
	}
	return length
}

// lengthOfJSON returns how long the JSON object is that b begins with, and 0 if there is
// none. An encoder wrote it, so only its end is looked for.
func lengthOfJSON(b []byte) int {
	if len(b) == 0 || b[0] != '{' {
		return 0
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for escaped := true; escaped; {
				end := bytes.IndexByte(b[i+1:], '"')
				if end < 0 {
					return 0
				}
				i += end + 1
				escaped = (i-len(bytes.TrimRight(b[:i], `\\`)))%2 == 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}
