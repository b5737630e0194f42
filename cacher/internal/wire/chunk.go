// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"container/list"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// chunk is the serializations of consecutive items in one format. A chunk always
// stands for the same items.
type chunk struct {
	at  place
	ids []identity
	// ends has where each item ends in the plain bytes, separator included.
	ends []int
	// changes: the chunk has taken the place of one with other items, so that it may
	// change again and its plain bytes be needed then.
	changes bool
	// content is what there is of the items. Once the chunk is kept, content is
	// replaced under Store.mu only.
	content atomic.Pointer[content]
	// compressing is held while the compressed form of initial events is made.
	compressing sync.Mutex

	// used is the Store's count of lists when the chunk was last used, usedPlain and
	// usedCompressed are that when a list was last made of its plain bytes, and of
	// its compressed ones.
	used, usedPlain, usedCompressed atomic.Int64

	// rows are those of the Table that was last sent compressed. rows is replaced
	// under Store.mu only. usedRows is the count of lists when rows were last used.
	rows     atomic.Pointer[keptRows]
	usedRows atomic.Int64

	// useful: a list has used items of the chunk since it was kept. others is how many
	// lists have found nearly all of its items changed since then; once they are
	// patience, the chunk is replaced whatever becomes of the next one.
	useful           atomic.Bool
	others, patience int // guarded by Store.mu

	// queued is the chunk's place in the order of eviction, nil if the chunk is not
	// kept; twice is its place in the order in which plain bytes are given up, nil
	// unless the chunk is kept both plain and compressed. Store.mu guards them.
	queued, twice *list.Element
}

// content is the items of a chunk: plain, compressed, or both. A content never changes.
type content struct {
	// plain has the items, each followed by the format's separator; deflated has
	// the same without the last separator.
	plain    []byte
	deflated *deflated
	// pieces are what plain would be joined of. Only a chunk that is not kept has
	// pieces, and has nothing else.
	pieces [][]byte
}

// minPatience and maxPatience bound how many lists find a chunk's items changed
// before the chunk is replaced. A chunk that takes the place of one that was of no
// use is replaced half as soon, so that lists of which everything changes from one to
// the next are hardly ever kept in vain.
const (
	minPatience = 2
	maxPatience = 64
)

// never is before all lists.
const never = math.MinInt64

func emptyChunk(at place, ids []identity) *chunk {
	c := &chunk{at: at, ids: slices.Clone(ids), ends: make([]int, len(ids)), patience: minPatience}
	c.usedPlain.Store(never)
	c.usedCompressed.Store(never)
	c.usedRows.Store(never)
	return c
}

// follow makes the chunk be treated as the one whose place it takes.
func (c *chunk) follow(previous *chunk) {
	c.changes = true
	if !previous.useful.Load() {
		c.patience = min(2*previous.patience, maxPatience)
	}
	c.usedPlain.Store(previous.usedPlain.Load())
	c.usedCompressed.Store(previous.usedCompressed.Load())
	c.usedRows.Store(previous.usedRows.Load())
}

// length is how many plain bytes the chunk has.
func (c *chunk) length() int { return c.ends[len(c.ends)-1] }

// place is where a chunk begins: a key, in a format.
type place struct {
	format *format
	key    string
}

// chunkOverhead is the memory of a chunk beyond its bytes, identities and ends:
// the struct, its entry in the index and in the queue, in bytes.
const chunkOverhead = 256

func (c *chunk) size() int64 {
	return c.content.Load().size() + c.rows.Load().size() + int64(cap(c.ids))*int64(unsafe.Sizeof(identity{})) + int64(cap(c.ends))*int64(unsafe.Sizeof(0)) + chunkOverhead
}

func (c *content) size() int64 { return int64(cap(c.plain)) + c.deflated.size() }

// with returns the content with what other has of it as well.
func (c *content) with(other content) content {
	if c.plain != nil {
		other.plain = c.plain
	}
	if c.deflated != nil {
		other.deflated = c.deflated
	}
	return other
}

// plain returns the items, each followed by the separator, and whether they had to
// be made of the compressed ones.
func (c *chunk) plain(separator []byte) (plain []byte, made bool, err error) {
	has := c.content.Load()
	switch {
	case has.plain != nil:
		return has.plain, false, nil
	case has.pieces != nil:
		return bytes.Join(has.pieces, nil), false, nil
	}
	plain, err = has.deflated.inflate(len(separator))
	if err == nil && has.deflated.framed {
		plain = c.withoutLengths(plain)
	}
	return append(plain, separator...), true, err
}

// itemLength is the length of an item, separator included.
func (c *chunk) itemLength(i int) int {
	if i > 0 {
		return c.ends[i] - c.ends[i-1]
	}
	return c.ends[0]
}

// item returns the item at a position, separator included, of the plain bytes.
func (c *chunk) item(plain []byte, i int) []byte {
	begin := 0
	if i > 0 {
		begin = c.ends[i-1]
	}
	return plain[begin:c.ends[i]]
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
// and of the next ones of missing for all others. A chunk that is not worth keeping
// refers to the bytes of both, unless whole. newChunk returns nil if missing does not have the
// items, or the previous chunk can't be read.
func newChunk(f *format, p *part, missing *cutter, whole bool) *chunk {
	made := emptyChunk(place{f, p.elements[0].Key}, p.ids)
	var previous []byte
	if p.previous != nil {
		made.follow(p.previous)
		if p.lacks < len(p.ids) {
			var err error
			if previous, _, err = p.previous.plain(missing.separator); err != nil {
				return nil
			}
		}
	}
	var pieces [][]byte
	end := 0
	for i := range p.ids {
		if p.from != nil && p.from[i] >= 0 {
			item := p.previous.item(previous, p.from[i])
			pieces = appendPiece(pieces, item)
			end += len(item)
		} else {
			item, ok := missing.next()
			if !ok {
				return nil
			}
			pieces = appendPiece(appendPiece(pieces, item), missing.separator)
			end += len(item) + len(missing.separator)
		}
		made.ends[i] = end
	}
	if !p.keep && !whole {
		made.content.Store(&content{pieces: pieces})
		return made
	}
	plain := bytes.Join(pieces, nil) // which clears no memory before it is written
	made.content.Store(&content{plain: plain})
	return made
}

// appendPiece appends a piece, as a part of the last one if that ends in memory
// where the piece begins.
func appendPiece(pieces [][]byte, p []byte) [][]byte {
	if len(p) == 0 {
		return pieces
	}
	if n := len(pieces); n > 0 {
		last := pieces[n-1]
		if cap(last)-len(last) >= len(p) && unsafe.SliceData(last[len(last):len(last)+1]) == unsafe.SliceData(p) {
			pieces[n-1] = last[:len(last)+len(p)]
			return pieces
		}
	}
	return append(pieces, p)
}

// writePieces writes pieces, but for so many bytes at the end, which the last one
// has at least.
func writePieces(w io.Writer, pieces [][]byte, but int) error {
	for i, p := range pieces {
		if i == len(pieces)-1 {
			p = p[:len(p)-but]
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}
