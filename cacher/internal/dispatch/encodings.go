// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"sync/atomic"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// keptEncodings bounds the serializations kept with elements. It drops the oldest first, because
// clients rarely request their elements.
type keptEncodings struct {
	// limit is the maximum of bytes. If negative, we keep nothing.
	limit, bytes atomic.Int64
	events       EventKeeper
	metrics      *metrics.Resource

	mu struct {
		sync.Mutex
		kept   []keptEncoding // oldest first
		closed bool
	}
}

func newKeptEncodings(events EventKeeper, m *metrics.Resource) *keptEncodings {
	return &keptEncodings{events: events, metrics: m}
}

func (e *keptEncodings) setLimit(bytes int64) {
	e.limit.Store(bytes)
	e.shrink()
}

type keptEncoding struct {
	of    *watchcache.Encodings
	id    string
	bytes int64
	drop  func() // drops the server's copies
}

func (e *keptEncodings) of(element *watchcache.Element, id string, encode func() ([]byte, error)) ([]byte, error) {
	if e.limit.Load() < 0 {
		e.metrics.Encoded(false)
		return encode()
	}
	of := element.Encodings()
	raw, created, err := of.Get(id, encode)
	e.metrics.Encoded(!created)
	switch {
	case err != nil:
		of.Drop(id)
	case created:
		e.keep(keptEncoding{of: of, id: id, bytes: int64(cap(raw)), drop: e.events.Keep(raw, e.count)})
	}
	return raw, err
}

func (e *keptEncodings) keep(made keptEncoding) {
	e.mu.Lock()
	e.mu.kept = append(e.mu.kept, made)
	closed := e.mu.closed
	e.mu.Unlock()
	e.count(made.bytes)
	if closed {
		e.shrink()
	}
}

// close drops all serializations. Later ones are dropped at once, because the server's Events
// outlive the cache.
func (e *keptEncodings) close() {
	e.mu.Lock()
	e.mu.closed = true
	e.mu.Unlock()
	e.shrink()
}

// count adds bytes, maybe negative, to the size of kept serializations and compressed events.
func (e *keptEncodings) count(bytes int64) {
	e.bytes.Add(bytes)
	if bytes > 0 {
		e.shrink()
	}
}

// shrink drops the oldest serializations above the limit, or all once e is closed.
func (e *keptEncodings) shrink() {
	var drop []keptEncoding
	e.mu.Lock()
	for len(e.mu.kept) > 0 && (e.mu.closed || e.bytes.Load() > e.limit.Load()) {
		oldest := &e.mu.kept[0]
		drop = append(drop, *oldest)
		e.bytes.Add(-oldest.bytes)
		*oldest = keptEncoding{}
		e.mu.kept = e.mu.kept[1:]
	}
	e.mu.Unlock()
	for _, d := range drop {
		d.of.Drop(d.id)
		d.drop()
	}
}
