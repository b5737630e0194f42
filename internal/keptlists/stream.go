// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"io"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/server/routine"
)

// Stream is the response to a watch. The request's context carries it to the cache. It collects
// initial events into large writes. If the server would compress the watch, the body is one gzip
// member of blocks shared by all watches of the same events (gzip.go). Used on one goroutine.
type Stream struct {
	http.ResponseWriter
	events *Events
	// wanted is true if a watch must be compressed, compressed if the response is.
	wanted, compressed bool
	// next is the initial event being written.
	next next
	// proven is a writer that forwarded an event unchanged.
	proven io.Writer
	// within is true if the last event belongs to a run and isn't its last.
	within bool
	body   member
	// plain holds the uncompressed bytes of this watch alone.
	plain []byte
	// sent is a chunk sent with its first event, until its last event is written. at is its next
	// event.
	sent *chunk
	at   int
}

type next struct {
	run   *Run
	chunk *chunk
	at    int
	// bytes are the event or a placeholder.
	bytes  []byte
	framed bool // the event's length was written
	// stands is true if bytes are a placeholder, written to a proven writer.
	stands bool
	taken  bool // the event reached the response
}

// is reports whether p is the event.
func (n *next) is(p []byte) bool {
	return len(p) == len(n.bytes) && (n.stands || bytes.Equal(p, n.bytes))
}

type streamKey struct{}

func streamOf(ctx context.Context) *Stream {
	s, _ := ctx.Value(streamKey{}).(*Stream)
	return s
}

// blank is the placeholder of events sent compressed, so that we don't decompress them. It is
// neither read nor written.
var blank = make([]byte, 1<<20)

// errOrder ends a watch whose response lacks a placeholder or an event already sent.
var errOrder = errors.New("the response to a watch has not received the events that were written to it")

// event writes one of a run's events to w, which leads to the response.
func (s *Stream) event(r *Run, c *chunk, at int, w io.Writer) (err error) {
	s.next = next{run: r, chunk: c, at: at}
	defer func() { s.next = next{} }()
	n := c.itemLength(at)
	stands := s.compressed && s.proven == w && n <= len(blank) && (at == 0 || s.sent == c)
	if stands {
		s.next.bytes, s.next.stands = blank[:n], true
	} else if s.next.bytes, err = r.event(c, at); err != nil {
		return err
	}
	if _, err = w.Write(s.next.bytes); err != nil {
		return err
	}
	switch {
	case s.next.taken && reflect.TypeOf(w).Comparable():
		s.proven = w
	case stands:
		return errOrder
	}
	return nil
}

func (l *Encoder) serveWatch(next http.Handler, w http.ResponseWriter, r *http.Request, compressed bool) {
	stream := &Stream{ResponseWriter: w, events: &l.events, wanted: compressed, body: member{out: collected{to: w}}}
	inner := r.WithContext(context.WithValue(r.Context(), streamKey{}, stream))
	if compressed {
		l.events.on.Store(true)
		inner.Header = r.Header.Clone()
		inner.Header.Del("Accept-Encoding")
	}
	next.ServeHTTP(responsewriter.WrapForHTTP1Or2(stream), inner)
	// The server may serve the watch after its handlers return.
	if !routine.AppendTask(inner.Context(), &routine.Task{Func: stream.finish}) {
		stream.finish()
	}
}

var _ responsewriter.UserProvidedDecorator = (*Stream)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (s *Stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (s *Stream) WriteHeader(status int) {
	if header := s.Header(); s.wanted && status == http.StatusOK && header.Get("Content-Encoding") == "" {
		s.compressed = true
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
		_ = s.body.out.add(gzipHeader[:]) // buffered, can't fail
	}
	s.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (s *Stream) Write(p []byte) (int, error) {
	err := s.write(p)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *Stream) write(p []byte) error {
	next := &s.next
	initial := next.run != nil && !next.taken
	switch {
	case initial && next.is(p):
		next.taken = true
		s.within = next.at < len(next.chunk.ids)-1
		if s.compressed {
			return s.initial(next)
		}
		return s.body.out.add(p)
	case initial && len(p) == lengthBytes && int(binary.BigEndian.Uint32(p)) == len(next.bytes):
		next.framed = true
		if s.compressed {
			return nil
		}
		return s.body.out.add(p)
	}
	s.within = false
	if !s.compressed {
		if err := s.body.out.send(); err != nil {
			return err
		}
		_, err := s.ResponseWriter.Write(p)
		return err
	}
	if event := s.events.find(p); event != nil {
		return s.shared(event.compressed())
	}
	return s.own(p)
}

// initial receives an event of a run. With the first, it sends all in compressed form, because the
// reader writes each of them (see ShareInitialEvents).
func (s *Stream) initial(n *next) error {
	switch {
	case s.sent == nil && n.at == 0:
		d, err := n.run.of.store.deflatedOf(n.chunk, n.framed)
		if err == nil {
			err = s.shared(d)
		}
		if err != nil {
			return err
		}
		s.sent, s.at = n.chunk, 0
	case s.sent == nil: // the first event did not arrive unchanged
		if n.framed {
			s.plain = binary.BigEndian.AppendUint32(s.plain, uint32(len(n.bytes)))
		}
		return s.own(n.bytes)
	case s.sent != n.chunk || s.at != n.at:
		return errOrder
	}
	if s.at++; s.at == len(n.chunk.ids) {
		s.sent = nil
	}
	return nil
}

// Flush implements http.Flusher. Within a run, it leaves flushing to the last event.
func (s *Stream) Flush() {
	if s.within {
		return
	}
	_ = s.settle()
	_ = s.body.out.send() // the next Write returns the error
	if flusher, ok := s.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// finish ends the body. On errors, the client is gone.
func (s *Stream) finish() {
	if !s.compressed {
		_ = s.body.out.send()
	} else if s.settle() == nil {
		_ = s.body.end(nil)
	}
}

const lengthBytes = 4

// storedBytes is the maximum number of bytes not worth compressing.
const storedBytes = 32

// own writes bytes of this watch alone.
func (s *Stream) own(p []byte) error {
	s.plain = append(s.plain, p...)
	if len(s.plain) < collectedBytes {
		return s.body.out.err
	}
	return s.settle()
}

func (s *Stream) shared(d *deflated) error {
	if err := s.settle(); err != nil {
		return err
	}
	return s.body.add(d)
}

// settle compresses the bytes of this watch alone.
func (s *Stream) settle() error {
	p := s.plain
	s.plain = nil // a watch may be idle for long
	switch {
	case len(p) == 0:
		return s.body.out.err
	case len(p) > storedBytes:
		return s.body.add(deflate(p))
	}
	return s.body.stored(p)
}

// Events finds the compressed form of watch events, registered by their encoders with
// [Events.Keep], by their plain bytes.
type Events struct {
	// on is true once a watch was compressed.
	on atomic.Bool
	of sync.Map // of *Event, by the hash of its bytes
}

// Event is the bytes of a watch event for several watches, compressed on demand.
type Event struct {
	all   *Events
	plain []byte
	// add counts the compressed form's bytes.
	add func(int64)

	mu struct {
		sync.Mutex
		deflated *deflated // nil until needed
		dropped  bool
	}
}

// Keep keeps the bytes of an event until Drop. It returns nil until a watch is compressed. add is
// called, with no locks held, when the event's memory changes.
func (e *Events) Keep(plain []byte, add func(int64)) *Event {
	if !e.on.Load() || len(plain) == 0 {
		return nil
	}
	event := &Event{all: e, plain: plain, add: add}
	e.of.Store(maphash.Bytes(seed, plain), event)
	return event
}

// Drop removes the event. A nil Event is valid.
func (e *Event) Drop() {
	if e == nil {
		return
	}
	e.all.of.CompareAndDelete(maphash.Bytes(seed, e.plain), e)
	e.mu.Lock()
	e.mu.dropped = true
	size := e.mu.deflated.size()
	e.mu.Unlock()
	e.add(-size)
}

func (e *Events) find(p []byte) *Event {
	found, ok := e.of.Load(maphash.Bytes(seed, p))
	if !ok || !bytes.Equal(found.(*Event).plain, p) {
		return nil
	}
	return found.(*Event)
}

func (e *Event) compressed() *deflated {
	e.mu.Lock()
	made := e.mu.deflated == nil
	if made {
		e.mu.deflated = deflate(e.plain)
	}
	d, counts := e.mu.deflated, made && !e.mu.dropped
	e.mu.Unlock()
	if counts {
		e.add(d.size())
	}
	return d
}
