// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// encodings bounds the serializations that elements keep: the oldest are
// dropped first, which are those of elements that hardly anyone asks for any
// more.
type encodings struct {
	budget int64 // bytes; negative: keep none

	mu struct {
		sync.Mutex
		kept  []keptEncoding // in the order of their making, from head on
		head  int
		bytes int64
	}
}

type keptEncoding struct {
	of    *watchcache.Encodings
	id    string
	bytes int64
}

// of returns the element's serialization with the identifier.
func (e *encodings) of(element *watchcache.Element, id string, encode func() ([]byte, error)) ([]byte, error) {
	if e.budget < 0 {
		return encode()
	}
	of := element.Encodings()
	raw, created, err := of.Get(id, encode)
	switch {
	case err != nil:
		of.Drop(id)
	case created:
		e.keep(keptEncoding{of: of, id: id, bytes: int64(cap(raw))})
	}
	return raw, err
}

func (e *encodings) keep(made keptEncoding) {
	var drop []keptEncoding
	e.mu.Lock()
	e.mu.kept = append(e.mu.kept, made)
	e.mu.bytes += made.bytes
	for e.mu.bytes > e.budget {
		oldest := &e.mu.kept[e.mu.head]
		drop = append(drop, *oldest)
		e.mu.bytes -= oldest.bytes
		*oldest = keptEncoding{}
		e.mu.head++
	}
	if e.mu.head > len(e.mu.kept)/2 {
		n := copy(e.mu.kept, e.mu.kept[e.mu.head:])
		clear(e.mu.kept[n:])
		e.mu.kept, e.mu.head = e.mu.kept[:n], 0
	}
	e.mu.Unlock()
	for _, d := range drop {
		d.of.Drop(d.id)
	}
}

// bytes returns what is kept now.
func (e *encodings) bytes() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.bytes
}
