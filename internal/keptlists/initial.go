// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Initial divides the initial events of a watch into runs, at the keys that divide lists and beyond
// bigElement, because a client that doesn't read holds a run. Runs are encoded as chunks of the
// Store, shared by watches with similar state. Not safe for concurrent use.
type Initial struct {
	store *Store
	// stream is the response if it receives every event in order, or nil.
	stream *Stream

	elements []*watchcache.Element
	ids      []identity
	size     int64 // of the elements
}

// Watch implements cacher.EncodingStore. It returns nil if a registry's Decorator may read, and
// change, the initial events. Servers of custom resources have none.
func (s *Store) Watch(ctx context.Context) cacher.WatchEncoder {
	if !s.encoder.custom.Load() && ctx.Value(sharedKey{}) == nil {
		return nil
	}
	return s.initial(ctx)
}

func (s *Store) initial(ctx context.Context) *Initial {
	s.lists.Add(1)
	i := &Initial{store: s}
	if ctx.Value(sharedKey{}) != nil {
		i.stream = streamOf(ctx)
	}
	return i
}

// Add adds an element. If it begins a new run, Add returns the previous one.
func (i *Initial) Add(e *watchcache.Element) (before cacher.EventRun) {
	id := identityOf(e)
	if n := len(i.elements); n > 0 && (begins(id, e, n) || i.size+e.Size > bigElement) {
		before = i.End()
	}
	i.elements, i.ids = append(i.elements, e), append(i.ids, id)
	i.size += e.Size
	return before
}

// End returns the last run, nil if empty.
func (i *Initial) End() cacher.EventRun {
	if len(i.elements) == 0 {
		return nil
	}
	r := &Run{of: i, part: part{elements: slices.Clone(i.elements), ids: slices.Clone(i.ids)}}
	clear(i.elements)
	i.elements, i.ids, i.size = i.elements[:0], i.ids[:0], 0
	return r
}

type Run struct {
	of   *Initial
	part part

	mu struct {
		sync.Mutex
		// id is the format of chunk.
		id    string
		chunk *chunk
		// made is the part that this run encoded chunk for, with the events encoded, or nil.
		made *part
		// plain has the events of chunk, loaded on demand.
		plain []byte
	}
}

// Elements returns the elements of the run's events. Callers must not modify it.
func (r *Run) Elements() []*watchcache.Element { return r.part.elements }

type eventEncoder = func(*watchcache.Element, io.Writer) error

// Write writes an event of the run in the format id with a single w.Write, as framers require.
// encode must not depend on earlier events. known is true if this run did not encode the event. ok
// is false, with nothing written, if the events can't be shared.
func (r *Run) Write(at int, id string, encode eventEncoder, w io.Writer) (known, ok bool, err error) {
	if len(r.part.elements) < minItems || r.of.store.off() {
		return false, false, nil
	}
	c, known := r.find(at, id, encode)
	if c == nil {
		return false, false, nil
	}
	stream := r.of.stream
	if stream == nil {
		event, err := r.event(c, at)
		if err == nil {
			_, err = w.Write(event)
		}
		return known, true, err
	}
	return known, true, stream.event(r, c, at, w)
}

// find returns the run's chunk in a format, or nil if encoding fails.
func (r *Run) find(at int, id string, encode eventEncoder) (c *chunk, known bool) {
	r.mu.Lock()
	c, made := r.mu.chunk, r.mu.made
	found := c != nil && r.mu.id == id
	r.mu.Unlock()
	if !found {
		var err error
		if c, made, err = r.of.store.chunkOf(id, r.part, encode); err != nil {
			return nil, false // the server's encoder will return the error
		}
		r.mu.Lock()
		r.mu.id, r.mu.chunk, r.mu.made, r.mu.plain = id, c, made, nil
		r.mu.Unlock()
	}
	return c, made == nil || (made.from != nil && made.from[at] >= 0)
}

func (r *Run) event(c *chunk, at int) ([]byte, error) {
	r.mu.Lock()
	plain := r.mu.plain
	r.mu.Unlock()
	if plain == nil {
		var err error
		if plain, err = r.of.store.plainOf(c); err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.mu.plain = plain
		r.mu.Unlock()
	}
	return c.item(plain, at), nil
}

// making is a chunk of initial events in progress, for all concurrent watches.
type making struct {
	ids   []identity
	chunk func() (*chunk, error)
}

// chunkOf returns the chunk of a part's events and keeps it if there is room. made is the part if
// this call encoded the chunk.
func (s *Store) chunkOf(id string, p part, encode eventEncoder) (c *chunk, made *part, err error) {
	of := formatID{encoder: runtime.Identifier(id)}
	f := loaded(&s.formats, of, func() *format { return newFormat(of, eventSyntax) })
	at := place{f, p.elements[0].Key}
	s.mu.Lock()
	c, previous := s.find(at, p.ids)
	m := s.mu.making[at]
	mine := c == nil && (m == nil || !slices.Equal(m.ids, p.ids))
	if mine {
		m = &making{ids: p.ids}
		m.chunk = sync.OnceValues(func() (*chunk, error) {
			defer s.made(at, m)
			p.compare(previous)
			var err error
			if p.chunk, err = newChunk(f, &p, func(e *watchcache.Element, to *pieces) error { return encode(e, to) }); err != nil {
				return nil, err
			}
			p.keep = true
			s.keep([]*part{&p})
			return p.chunk, nil
		})
		s.mu.making[at] = m
	}
	s.mu.Unlock()
	if c != nil {
		return c, nil, nil
	}
	if c, err = m.chunk(); mine {
		made = &p
	}
	return c, made, err
}

func (s *Store) made(at place, m *making) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.making[at] == m {
		delete(s.mu.making, at)
	}
}

func (s *Store) plainOf(c *chunk) ([]byte, error) {
	plain, made, err := c.plain()
	if err != nil {
		return nil, err
	}
	s.usedPlain(c)
	if made {
		s.complete(c, content{plain: plain})
	}
	return plain, nil
}

// deflatedOf returns the compressed events of a chunk, each after its length if framed. It
// compresses once for concurrent callers and keeps the result if there is room.
func (s *Store) deflatedOf(c *chunk, framed bool) (*deflated, error) {
	c.compressing.Lock()
	defer c.compressing.Unlock()
	has := c.content.Load().deflated
	if has != nil && has.framed == framed {
		return has, nil
	}
	plain, _, err := c.plain()
	if err != nil {
		return nil, err
	}
	if framed {
		plain = c.withLengths(plain)
	}
	made := deflate(plain)
	made.framed = framed
	if has == nil {
		s.mu.Lock()
		s.put(c, content{deflated: made}) // even without room for the chunk's plain bytes
		s.mu.Unlock()
	}
	return made, nil
}

// withLengths inserts the length before each item.
func (c *chunk) withLengths(plain []byte) []byte {
	framed := make([]byte, 0, len(plain)+lengthBytes*len(c.ends))
	for i := range c.ends {
		framed = binary.BigEndian.AppendUint32(framed, uint32(c.itemLength(i)))
		framed = append(framed, c.item(plain, i)...)
	}
	return framed
}

// withoutLengths undoes withLengths in place.
func (c *chunk) withoutLengths(framed []byte) []byte {
	plain := framed[:0]
	for i := range c.ends {
		n := c.itemLength(i)
		plain = append(plain, framed[lengthBytes:lengthBytes+n]...)
		framed = framed[lengthBytes+n:]
	}
	return plain
}

// sharedKey marks the context of a watch whose reader does not change events.
type sharedKey struct{}

// ShareInitialEvents returns a context for a watch whose reader changes no event and, within a
// Stream, writes all of them in order. Such watches share encoded events; others get private
// copies.
func ShareInitialEvents(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, true)
}

// Probe is an empty watch that a cache returns if the context contains it. A registry that returns
// this very watch neither changes nor filters events.
type Probe struct{ ended chan watch.Event }

var _ watch.Interface = (*Probe)(nil)

type probeKey struct{}

// ReturnsWatches reports whether open, which opens a watch of a registry, returns the cache's watch
// itself, without a Decorator or filter. other is true if open returned another watch, now stopped.
// open is called once and does not wait for the cache.
func (l *Encoder) ReturnsWatches(ctx context.Context, open func(context.Context) (watch.Interface, error)) (same, other bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	probe := &Probe{ended: make(chan watch.Event)}
	close(probe.ended)
	w, err := open(context.WithValue(ctx, probeKey{}, probe))
	if err != nil || w == nil {
		return false, false
	}
	if w == watch.Interface(probe) {
		return true, false
	}
	w.Stop()
	go func() { // a watch.Filter ends only after its events are received
		for range w.ResultChan() {
		}
	}()
	return false, true
}

// Probe implements cacher.Encoder.
func (l *Encoder) Probe(ctx context.Context) watch.Interface {
	if p, ok := ctx.Value(probeKey{}).(*Probe); ok {
		return p
	}
	return nil
}

// ResultChan implements watch.Interface.
func (p *Probe) ResultChan() <-chan watch.Event { return p.ended }

// Stop implements watch.Interface.
func (*Probe) Stop() {}
