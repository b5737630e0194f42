// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"container/list"
	"slices"
	"sync/atomic"
	"unsafe"
)

// chunk is the serializations of consecutive items in one format. A chunk
// never changes once it is kept, but for when it was last used.
type chunk struct {
	at  place
	ids []identity
	// bytes has the items, each followed by the format's separator; ends has where
	// each of them ends, separator included.
	bytes []byte
	ends  []int

	used atomic.Int64 // the Store's count of lists when it was last used

	// queued is the chunk's place in the order of eviction, nil if the chunk is not
	// kept. Store.mu guards it.
	queued *list.Element
}

// place is where a chunk begins: a key, in a format.
type place struct {
	format *format
	key    string
}

// chunkOverhead is the memory of a chunk beyond its bytes, identities and ends:
// the struct, its entry in the index and in the queue, in bytes.
const chunkOverhead = 256

func (c *chunk) size() int64 {
	return int64(cap(c.bytes)) + int64(cap(c.ids))*int64(unsafe.Sizeof(identity{})) + int64(cap(c.ends))*int64(unsafe.Sizeof(0)) + chunkOverhead
}

// item returns the bytes of the item at a position, separator included.
func (c *chunk) item(i int) []byte {
	begin := 0
	if i > 0 {
		begin = c.ends[i-1]
	}
	return c.bytes[begin:c.ends[i]]
}

// position returns where the chunk has the element, -1 if it does not have it.
// Positions are usually near from.
func (c *chunk) position(id identity, from int) int {
	from = min(from, len(c.ids))
	if i := slices.Index(c.ids[from:], id); i >= 0 {
		return from + i
	}
	return slices.Index(c.ids[:from], id)
}

// newChunk makes the chunk of a part: of the items that the previous chunk has,
// and of the next ones of missing for all others. newChunk returns nil if missing
// does not have them.
func newChunk(f *format, p *part, missing *cutter) *chunk {
	made := &chunk{at: place{f, p.elements[0].Key}, ids: slices.Clone(p.ids), ends: make([]int, len(p.ids))}
	pieces := make([][]byte, 0, 2*len(p.ids))
	end := 0
	for i := range p.ids {
		if p.from != nil && p.from[i] >= 0 {
			item := p.previous.item(p.from[i])
			pieces = append(pieces, item)
			end += len(item)
		} else {
			item, ok := missing.next()
			if !ok {
				return nil
			}
			pieces = append(pieces, item, missing.separator)
			end += len(item) + len(missing.separator)
		}
		made.ends[i] = end
	}
	made.bytes = bytes.Join(pieces, nil) // which clears no memory before it is written
	return made
}
