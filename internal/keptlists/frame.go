// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

type syntax int

const (
	jsonSyntax syntax = iota
	protobufSyntax
	eventSyntax // for watch events, concatenated
)

var comma = []byte{','}

// separator returns the bytes between two items. If an encoder uses others, its first list differs.
func (s syntax) separator() []byte {
	if s == jsonSyntax {
		return comma
	}
	return nil
}

// frame is the bytes around the items of one list.
type frame struct {
	syntax syntax
	// head precedes the items, tail follows them. In protobuf, the items end a field: envelope
	// precedes its length, head begins its content.
	envelope, head, tail []byte
}

// newFrame returns the frame of a list from its encodings with no item and with one.
func newFrame(s syntax, empty, one []byte) (f *frame, ok bool) {
	if s == protobufSyntax {
		envelope, head, tail, ok := openEnvelope(empty)
		if !ok {
			return nil, false
		}
		f = &frame{syntax: s, envelope: envelope, head: head, tail: tail}
	} else {
		at := commonPrefix(empty, one)
		// An item and the tail differ in their first byte, so the common prefix ends where the
		// items begin.
		if at == len(empty) || empty[at] != ']' {
			return nil, false
		}
		f = &frame{syntax: s, head: empty[:at], tail: empty[at:]}
	}
	item, ok := f.items(one)
	return f, ok && len(item) > 0
}

// items returns the items of an encoded list, and false if it has another frame.
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

// beginning returns the bytes before items of the given length.
func (f *frame) beginning(length int) []byte {
	if f.syntax != protobufSyntax {
		return f.head
	}
	made := make([]byte, 0, len(f.envelope)+binary.MaxVarintLen64+len(f.head))
	made = append(made, f.envelope...)
	made = binary.AppendUvarint(made, uint64(len(f.head)+length))
	return append(made, f.head...)
}

// A Kubernetes object in protobuf is these bytes and a runtime.Unknown, whose field 2 is the
// object.
var envelopeMagic = []byte("k8s\x00")

const envelopeContent = 2

// openEnvelope returns the object in an envelope, the bytes before its length, and those after it.
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

// cutter splits encoded items one by one.
type cutter struct {
	syntax syntax
	rest   []byte // remaining items, with separators between them
}

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
		// A separator must not follow the last item.
		return item, ok && len(c.rest) > 0
	}
	return item, true
}

// lengthOfField returns the length of the protobuf field that b begins with, at most 0 if none.
func lengthOfField(b []byte) int {
	_, kind, length := protowire.ConsumeField(b)
	if kind != protowire.BytesType {
		return 0
	}
	return length
}

// lengthOfJSON returns the length of the well-formed JSON object that b begins with, 0 if none.
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
