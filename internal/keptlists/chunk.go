// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"container/list"
	"hash/maphash"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// The size of chunks. One in chunkItems keys begins a chunk.
const (
	chunkItems    = 16
	maxChunkItems = 64
	// bigElement is the size in memory, in bytes, of an element that begins a
	// chunk whatever its key.
	bigElement = 256 << 10
)

// seed makes hashes of keys that no client can foresee.
var seed = maphash.MakeSeed()

// identity identifies an element without a reference to it. The address alone would not do,
// because a later element may have it.
type identity struct {
	address  uintptr
	key      uint64
	revision uint64
}

// identityBytes is the size of an identity in memory.
const identityBytes = 24

func addressOf(e *watchcache.Element) uintptr { return reflect.ValueOf(e).Pointer() }

// part is a run of a list's elements that have a chunk, or get one.
type part struct {
	elements []*watchcache.Element
	ids      []identity
	first    int // the position of the first element in the list
	// chunk has the bytes of exactly these elements, nil if there are none yet.
	chunk *chunk
	// previous has the bytes of other elements from the same key on; it may be nil.
	previous *chunk
	// from has for each element its position in previous, or -1; it is nil without
	// previous. lacks is how many items must be encoded.
	from  []int
	lacks int
	// keep: the chunk is kept, or is worth keeping once it is made.
	keep bool
}

// compare finds the items that a part without a chunk shares with a previous chunk, nil if
// there is none.
func (p *part) compare(previous *chunk) {
	p.previous, p.from, p.lacks = previous, nil, len(p.elements)
	if previous == nil {
		return
	}
	p.from = make([]int, len(p.ids))
	next := 0
	for i, id := range p.ids {
		at := previous.position(id, next)
		if p.from[i] = at; at >= 0 {
			next = at + 1
			p.lacks--
		} else {
			next++ // an object that has changed is where it was
		}
	}
}

// isOther reports whether a part has so little in common with the chunk at its place that
// encoding all of it costs less than a new chunk. The limits were measured.
func (p *part) isOther(s syntax) bool {
	limit := len(p.elements) / 3
	if s == protobufSyntax {
		limit = len(p.elements) / 8
	}
	return p.lacks > max(limit, 2)
}

// hash returns a hash of the part's elements.
func (p *part) hash() uint64 {
	h := uint64(len(p.ids))
	for _, id := range p.ids {
		h = (h ^ id.revision ^ id.key ^ uint64(id.address)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// cut divides the elements of a list into parts. The key of an element decides whether a part
// begins at it, so that elements which come and go move no other boundary, and lists that
// overlap have parts in common.
func cut(elements []*watchcache.Element) []part {
	ids := make([]identity, len(elements))
	parts := make([]part, 0, len(elements)/chunkItems*5/4+1)
	begin := 0
	end := func(at int) {
		parts = append(parts, part{elements: elements[begin:at:at], ids: ids[begin:at:at], first: begin})
		begin = at
	}
	for i, e := range elements {
		ids[i] = identityOf(e)
		if i > begin && begins(ids[i], e, i-begin) {
			end(i)
		}
	}
	end(len(elements))
	return parts
}

func identityOf(e *watchcache.Element) identity {
	return identity{address: addressOf(e), key: maphash.String(seed, e.Key), revision: e.RV}
}

// begins reports whether a part begins at an element that follows a part of the
// given length.
func begins(id identity, e *watchcache.Element, length int) bool {
	return id.key%chunkItems == 0 || e.Size > bigElement || length == maxChunkItems
}

// sameKeys reports whether two parts have elements of the same keys.
func sameKeys(a, b []identity) bool {
	return slices.EqualFunc(a, b, func(x, y identity) bool { return x.key == y.key })
}

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
	// content has the items. Once the chunk is kept, it is replaced under Store.mu only.
	content atomic.Pointer[content]
	// compressing is held while the compressed form of initial events is made.
	compressing sync.Mutex

	// used is the Store's count of lists when the chunk was last used, usedPlain is that
	// when a list was last made of its plain bytes.
	used, usedPlain atomic.Int64

	// useful: a list has used items of the chunk. misses is how many lists have found nearly
	// all items changed; at patience, the chunk is replaced. Store.mu guards misses and
	// patience.
	useful           atomic.Bool
	misses, patience int

	// queued is the chunk's place in the eviction queue, nil if the chunk is not kept.
	// Store.mu guards it.
	queued *list.Element
}

// content is the items of a chunk: plain, compressed, or both. A content never changes.
type content struct {
	// plain has the items, each followed by the format's separator; deflated has
	// the same without the last separator.
	plain    []byte
	deflated *deflated
	// rows are those of the last Table that was sent compressed, if the items are metadata.
	rows *keptRows
}

// minPatience and maxPatience bound how many lists may find nearly all items of a chunk
// changed before it is replaced. The successor of a chunk that was of no use is replaced
// half as soon.
const (
	minPatience = 2
	maxPatience = 64
)

func emptyChunk(at place, ids []identity) *chunk {
	c := &chunk{at: at, ids: slices.Clone(ids), ends: make([]int, len(ids)), patience: minPatience}
	c.usedPlain.Store(math.MinInt64)
	return c
}

// inherit takes over the statistics of the chunk that this one replaces.
func (c *chunk) inherit(previous *chunk) {
	c.changes = true
	if !previous.useful.Load() {
		c.patience = min(2*previous.patience, maxPatience)
	}
	c.usedPlain.Store(previous.usedPlain.Load())
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

func (c *chunk) size(has *content) int64 {
	return has.size() + int64(cap(c.ids))*identityBytes + int64(cap(c.ends))*8 + chunkOverhead
}

func (c *content) size() int64 { return int64(cap(c.plain)) + c.deflated.size() + c.rows.size() }

// with returns the content together with the forms that other has.
func (c *content) with(other content) content {
	if c.plain != nil {
		other.plain = c.plain
	}
	if c.deflated != nil {
		other.deflated = c.deflated
	}
	if other.rows == nil {
		other.rows = c.rows
	}
	return other
}

// plain returns the items, each followed by the separator, and whether they had to
// be made of the compressed ones.
func (c *chunk) plain() (plain []byte, made bool, err error) {
	has := c.content.Load()
	if has.plain != nil {
		return has.plain, false, nil
	}
	separator := c.at.format.syntax.separator()
	plain, err = has.deflated.inflate(len(separator))
	if err == nil && has.deflated.framed {
		plain = c.withoutLengths(plain)
	}
	return append(plain, separator...), true, err
}

// deflate compresses the chunk's plain bytes, without the last separator.
func (c *chunk) deflate(plain []byte) *deflated {
	return deflate(plain[:len(plain)-len(c.at.format.syntax.separator())])
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

// newChunk makes the chunk of a part from the items of the previous chunk, and from those
// that encode adds.
func newChunk(f *format, p *part, encode func(*watchcache.Element, *pieces) error) (*chunk, error) {
	made := emptyChunk(place{f, p.elements[0].Key}, p.ids)
	var previous []byte
	if p.previous != nil {
		made.inherit(p.previous)
		if p.lacks < len(p.ids) {
			var err error
			if previous, _, err = p.previous.plain(); err != nil {
				return nil, err
			}
		}
	}
	var plain pieces
	for i, e := range p.elements {
		if p.from != nil && p.from[i] >= 0 {
			plain.add(p.previous.item(previous, p.from[i]))
		} else if err := encode(e, &plain); err != nil {
			return nil, err
		}
		made.ends[i] = plain.length
	}
	made.content.Store(&content{plain: bytes.Join(plain.all, nil)}) // which clears no memory before it is written
	return made, nil
}

// pieces are bytes that will be joined.
type pieces struct {
	all    [][]byte
	length int
}

func (p *pieces) add(piece []byte) {
	p.all = append(p.all, piece)
	p.length += len(piece)
}

// Write implements io.Writer.
func (p *pieces) Write(piece []byte) (int, error) {
	p.add(slices.Clone(piece))
	return len(piece), nil
}
