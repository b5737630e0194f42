// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"hash/maphash"
	"slices"
	"unsafe"

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

// identity tells elements apart without a reference to them: where an element
// is, and what key and resourceVersion it has. The address alone would not do,
// as a later element may have it.
type identity struct {
	address  uintptr
	key      uint64
	revision uint64
}

func addressOf(e *watchcache.Element) uintptr { return uintptr(unsafe.Pointer(e)) }

// part is a run of a list's elements that have a chunk, or get one.
type part struct {
	elements []*watchcache.Element
	ids      []identity
	first    int // the position of the first element in the list
	// chunk has the bytes of exactly these elements, nil if they are to be made.
	chunk *chunk
	// previous has the bytes of other elements from the same key on, some of which
	// may be in this part as well. previous may be nil.
	previous *chunk
	// from has for each element its position in previous, -1 if previous does not
	// have it. from is nil without previous. lacks is how many items are to be
	// encoded.
	from  []int
	lacks int
	// keep: the chunk is worth keeping once it is made.
	keep bool
}

// compare finds out what of a part without a chunk another chunk has, which may
// be nil.
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

// isOther reports whether a part has so little in common with the chunk at its
// place that encoding the whole again costs less than a new chunk. The limits
// were measured: bytes are copied about as quickly as protobuf is encoded.
func (p *part) isOther(s syntax) bool {
	limit := len(p.elements) / 3
	if s == protobufSyntax {
		limit = len(p.elements) / 8
	}
	return p.lacks > max(limit, 2)
}

// hash tells parts with other elements apart.
func (p *part) hash() uint64 {
	h := uint64(len(p.ids))
	for _, id := range p.ids {
		h = (h ^ id.revision ^ id.key ^ uint64(id.address)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// cut divides the elements of a list into parts. Whether a part begins at an
// element is decided by that element's key, so that elements which come and go
// move no other boundary, and lists that overlap have parts in common.
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
