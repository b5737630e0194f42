// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
)

// cutter takes the items of a list apart, one after the other.
type cutter struct {
	syntax    syntax
	separator []byte
	rest      []byte // the items that were not taken yet, with separators between them
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
		c.rest, ok = bytes.CutPrefix(c.rest, c.separator)
		// Nothing may follow the last item, its separator least of all.
		return item, ok && len(c.rest) > 0
	}
	return item, true
}

// lengthOfField returns how long the protobuf field is that b begins with, and
// what is not positive if there is none.
func lengthOfField(b []byte) int {
	_, kind, length := protowire.ConsumeField(b)
	if kind != protowire.BytesType {
		return 0
	}
	return length
}

// lengthOfJSON returns how long the JSON object is that b begins with, and 0 if
// there is none. The object is one that an encoder wrote: only its end is looked for.
func lengthOfJSON(b []byte) int {
	if len(b) == 0 || b[0] != '{' {
		return 0
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			end := endOfString(b[i+1:])
			if end < 0 {
				return 0
			}
			i += end + 1
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

// endOfString returns where the quote is that ends a JSON string, of which b
// begins after the first one; -1 if there is none.
func endOfString(b []byte) int {
	for from := 0; ; {
		quote := bytes.IndexByte(b[from:], '"')
		if quote < 0 {
			return -1
		}
		quote += from
		escapes := 0
		for escapes < quote-from && b[quote-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return quote
		}
		from = quote + 1
	}
}
