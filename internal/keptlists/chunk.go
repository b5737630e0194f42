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

// Sizes of chunks. On average one in chunkItems keys begins a chunk.
const (
	chunkItems    = 16
	maxChunkItems = 64
	// bigElement is the size in memory, in bytes, above which an element always begins a chunk.
	bigElement = 256 << 10
)

// seed is random, so that clients can't predict hashes of keys.
var seed = maphash.MakeSeed()

// identity identifies an element without a reference to it. The key and revision distinguish
// elements at a reused address.
type identity struct {
	address  uintptr
	key      uint64
	revision uint64
}

// identityBytes is the size of an identity in memory.
const identityBytes = 24

func addressOf(e *watchcache.Element) uintptr { return reflect.ValueOf(e).Pointer() }

// part is a run of a list's elements that share a chunk.
type part struct {
	elements []*watchcache.Element
	ids      []identity
	first    int // the position of the first element in the list
	// chunk has the bytes of exactly these elements, or is nil.
	chunk *chunk
	// previous is a chunk of other elements that begins at the same key, or nil.
	previous *chunk
	// from has the position of each element in previous, or -1; nil without previous. lacks is the
	// number of items to encode.
	from  []int
	lacks int
	// keep is true if the chunk is kept or will be.
	keep bool
}

// compare sets previous, which may be nil, and finds the items that the part shares with it.
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
			next++ // a changed object keeps its position
		}
	}
}

// isOther reports whether the part shares so little with previous that encoding all of it is
// cheaper than a new chunk. The limits are measured.
func (p *part) isOther(s syntax) bool {
	limit := len(p.elements) / 3
	if s == protobufSyntax {
		limit = len(p.elements) / 8
	}
	return p.lacks > max(limit, 2)
}

func (p *part) hash() uint64 {
	h := uint64(len(p.ids))
	for _, id := range p.ids {
		h = (h ^ id.revision ^ id.key ^ uint64(id.address)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// cut divides the elements of a list into parts. Boundaries depend on keys, so they are stable and
// overlapping lists share parts.
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

// begins reports whether a new part begins at e after a part of the given length.
func begins(id identity, e *watchcache.Element, length int) bool {
	return id.key%chunkItems == 0 || e.Size > bigElement || length == maxChunkItems
}

func sameKeys(a, b []identity) bool {
	return slices.EqualFunc(a, b, func(x, y identity) bool { return x.key == y.key })
}

// chunk is the serialization of consecutive items in one format. Its items never change.
type chunk struct {
	at  place
	ids []identity
	// ends has the end of each item in the plain bytes, separator included.
	ends []int
	// changes is true if the chunk replaced one with other items, so that the next change will
	// likely need its plain bytes.
	changes bool
	// content is replaced under Store.mu only, once the chunk is kept.
	content atomic.Pointer[content]
	// compressing is held while initial events are compressed.
	compressing sync.Mutex

	// used and usedPlain are the values of Store.lists when the chunk and its plain bytes were last
	// used.
	used, usedPlain atomic.Int64

	// useful is true once a list used items of the chunk. After patience lists found nearly all
	// items changed (misses), the chunk is replaced. misses and patience are guarded by Store.mu.
	useful           atomic.Bool
	misses, patience int

	// queued is the place in the eviction queue, nil if the chunk isn't kept. Guarded by Store.mu.
	queued *list.Element
}

// content is the items of a chunk, plain, compressed or both. Immutable.
type content struct {
	// plain has a separator after each item; deflated lacks the last one.
	plain    []byte
	deflated *deflated
	// rows are those of the last compressed Table, for metadata.
	rows *keptRows
}

// minPatience and maxPatience bound chunk.patience, which doubles when a chunk is replaced unused.
const (
	minPatience = 2
	maxPatience = 64
)

func emptyChunk(at place, ids []identity) *chunk {
	c := &chunk{at: at, ids: slices.Clone(ids), ends: make([]int, len(ids)), patience: minPatience}
	c.usedPlain.Store(math.MinInt64)
	return c
}

func (c *chunk) inherit(previous *chunk) {
	c.changes = true
	if !previous.useful.Load() {
		c.patience = min(2*previous.patience, maxPatience)
	}
	c.usedPlain.Store(previous.usedPlain.Load())
}

func (c *chunk) length() int { return c.ends[len(c.ends)-1] }

type place struct {
	format *format
	key    string
}

// chunkOverhead is the memory of a chunk's struct, index entry and queue entry, in bytes.
const chunkOverhead = 256

func (c *chunk) size(has *content) int64 {
	return has.size() + int64(cap(c.ids))*identityBytes + int64(cap(c.ends))*8 + chunkOverhead
}

func (c *content) size() int64 { return int64(cap(c.plain)) + c.deflated.size() + c.rows.size() }

// with merges two contents. c's plain and compressed bytes take precedence.
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

// plain returns the items, a separator after each. made is true if it decompressed them.
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

// deflate compresses plain without its last separator.
func (c *chunk) deflate(plain []byte) *deflated {
	return deflate(plain[:len(plain)-len(c.at.format.syntax.separator())])
}

func (c *chunk) itemLength(i int) int {
	if i > 0 {
		return c.ends[i] - c.ends[i-1]
	}
	return c.ends[0]
}

func (c *chunk) item(plain []byte, i int) []byte {
	begin := 0
	if i > 0 {
		begin = c.ends[i-1]
	}
	return plain[begin:c.ends[i]]
}

// position returns the element's position, or -1. It starts to search at from.
func (c *chunk) position(id identity, from int) int {
	from = min(from, len(c.ids))
	if i := slices.Index(c.ids[from:], id); i >= 0 {
		return from + i
	}
	return slices.Index(c.ids[:from], id)
}

// newChunk makes the chunk of a part from items of the previous chunk and of encode.
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
	made.content.Store(&content{plain: bytes.Join(plain.all, nil)}) // does not zero the memory first
	return made, nil
}

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
