// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"hash/maphash"
	"io"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/server/routine"
)

// Stream connects the response to a watch with the cache that sends its events, to which
// the context carries it. Initial events are collected, so that the connection gets many
// at once. The body of a watch that the server would compress is one member of gzip, of
// blocks that were made once for all watches that are sent the same (gzip.go). A Stream is
// for the goroutine that serves the watch.
type Stream struct {
	// to is nil until the response has begun.
	to *streamWriter
	// next is the initial event that is about to be written.
	next next
	// proven is a writer that has passed an event to the response unchanged.
	proven io.Writer
}

// next is an initial event on its way to the response.
type next struct {
	run   *Run
	chunk *chunk
	at    int
	// bytes are the event, or a placeholder.
	bytes  []byte
	framed bool // the event's length was written
	// stands: bytes are a placeholder, and are written to a proven writer.
	stands bool
	taken  bool // the event has come to the response
}

// is reports whether p, which has come to the response, is the event.
func (n *next) is(p []byte) bool {
	return len(p) == len(n.bytes) && (n.stands || bytes.Equal(p, n.bytes))
}

type streamKey struct{}

// streamOf returns the Stream of the request that the context is of, nil if there
// is none.
func streamOf(ctx context.Context) *Stream {
	s, _ := ctx.Value(streamKey{}).(*Stream)
	return s
}

// blank stands for events whose compressed form is sent, so that they need not be
// decompressed. Nobody reads or writes it.
var blank = make([]byte, 1<<20)

// write writes one of a run's events to w, which is the response or leads to it.
func (s *Stream) write(r *Run, c *chunk, at int, w io.Writer) (err error) {
	s.next = next{run: r, chunk: c, at: at}
	defer func() { s.next = next{} }()
	n := c.itemLength(at)
	stands := s.to != nil && s.to.compressed && s.proven == w && n <= len(blank)
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

// Stream wraps next in a handler that gives each watch a Stream. asks reports whether a
// request is a watch, and whether next would compress the response by itself. Put the
// handler inside everything that looks at the response's header or counts its bytes.
func (l *Listings) Stream(next http.Handler, asks func(*http.Request) (watch, compressed bool)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if !l.on.Load() {
			next.ServeHTTP(w, request)
			return
		}
		watch, compressed := asks(request)
		if !watch {
			next.ServeHTTP(w, request)
			return
		}
		stream := &Stream{}
		stream.to = &streamWriter{ResponseWriter: w, stream: stream, events: &l.events, wanted: compressed}
		inner := request.WithContext(context.WithValue(request.Context(), streamKey{}, stream))
		if compressed {
			l.events.on.Store(true)
			inner.Header = request.Header.Clone()
			inner.Header.Del("Accept-Encoding")
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(stream.to), inner)
		// The server may serve the watch once its handlers have returned.
		if !routine.AppendTask(inner.Context(), &routine.Task{Func: stream.to.finish}) {
			stream.to.finish()
		}
	})
}

// streamWriter is the response to a watch.
type streamWriter struct {
	http.ResponseWriter
	stream *Stream
	events *Events
	// wanted: the response must be compressed if it is a watch.
	wanted, compressed bool
	// within: the event that was written last is one of a run, and not the last.
	within bool
	out    collected
	member streamMember
}

var _ responsewriter.UserProvidedDecorator = (*streamWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *streamWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *streamWriter) WriteHeader(status int) {
	if header := w.Header(); w.wanted && status == http.StatusOK && header.Get("Content-Encoding") == "" {
		w.compressed = true
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *streamWriter) Write(p []byte) (int, error) {
	err := w.write(p)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *streamWriter) write(p []byte) error {
	w.out.to = w.ResponseWriter
	next := &w.stream.next
	initial := next.run != nil && !next.taken
	switch {
	case initial && next.is(p):
		next.taken = true
		w.within = next.at < len(next.chunk.ids)-1
		if w.compressed {
			return w.member.initial(&w.out, next)
		}
		return w.out.add(p)
	case initial && len(p) == lengthBytes && int(binary.BigEndian.Uint32(p)) == len(next.bytes):
		next.framed = true
		if w.compressed {
			return nil
		}
		return w.out.add(p)
	}
	w.within = false
	if w.compressed {
		if event := w.events.find(p); event != nil {
			return w.member.shared(&w.out, event.compressed())
		}
		return w.member.own(&w.out, p)
	}
	if err := w.out.send(); err != nil {
		return err
	}
	_, err := w.ResponseWriter.Write(p)
	return err
}

// Flush implements http.Flusher. Within a run, Flush leaves the events to the next one.
func (w *streamWriter) Flush() {
	if w.within {
		return
	}
	w.out.to = w.ResponseWriter
	if w.compressed {
		_ = w.member.settle(&w.out)
	}
	_ = w.out.send() // and the next Write says so
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// finish ends the body.
func (w *streamWriter) finish() {
	w.out.to = w.ResponseWriter
	if w.compressed {
		_ = w.member.end(&w.out)
	}
	_ = w.out.send() // an error means that the client is gone
}

// lengthBytes is the size of the length in front of each event in protobuf.
const lengthBytes = 4

// collected is a buffer in front of a response. Small writes would each wake up the
// goroutine of the connection.
type collected struct {
	to     io.Writer
	buffer *[]byte // nil if there is nothing
	err    error   // of the last send
}

var collectedBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, memberWrites)
	return &b
}}

// add writes p, now or with later bytes.
func (c *collected) add(p []byte) error {
	if c.err != nil {
		return c.err
	}
	if c.buffer != nil && len(*c.buffer)+len(p) > memberWrites {
		if err := c.send(); err != nil {
			return err
		}
	}
	if len(p) > memberWrites {
		_, c.err = c.to.Write(p)
		return c.err
	}
	if c.buffer == nil {
		c.buffer = collectedBuffers.Get().(*[]byte)
	}
	*c.buffer = append(*c.buffer, p...)
	return nil
}

// send writes the collected bytes. After a failed write all writes fail, and the buffer
// is not used again, because the connection may still be reading it.
func (c *collected) send() error {
	if c.buffer == nil || c.err != nil {
		return c.err
	}
	buffer := c.buffer
	c.buffer = nil
	if _, c.err = c.to.Write(*buffer); c.err != nil {
		return c.err
	}
	*buffer = (*buffer)[:0]
	collectedBuffers.Put(buffer)
	return nil
}

// storedBytes is up to how many bytes are not worth compressing.
const storedBytes = 32

// streamMember is the body of one watch as a member of gzip.
type streamMember struct {
	begun    bool
	checksum uint32
	length   int
	// plain has written bytes that are not compressed yet, for this watch alone.
	plain []byte
	// run and chunk have events, before at, that were written and must still be sent: nil
	// if there are none.
	run    *Run
	chunk  *chunk
	at     int
	framed bool
}

// initial writes an event of a run. The events of a run that come one after the
// other are sent in their compressed form once the last one has come.
func (m *streamMember) initial(out *collected, n *next) error {
	if m.run != n.run || m.chunk != n.chunk || m.at != n.at || m.framed != n.framed {
		if err := m.breakOff(); err != nil {
			return err
		}
		if n.at > 0 {
			return m.add(n.run, n.chunk, n.at, n.framed)
		}
		m.run, m.chunk, m.at, m.framed = n.run, n.chunk, 0, n.framed
	}
	if m.at++; m.at < len(m.chunk.ids) {
		return nil
	}
	store := m.run.of.store
	d, err := store.deflatedOf(m.chunk, m.framed)
	store.share.Settle()
	m.run, m.chunk, m.at = nil, nil, 0
	if err != nil {
		return err
	}
	return m.shared(out, d)
}

// breakOff has the events of a run that does not go on compressed by themselves.
func (m *streamMember) breakOff() error {
	run, chunk, n := m.run, m.chunk, m.at
	m.run, m.chunk, m.at = nil, nil, 0
	for i := range n {
		if err := m.add(run, chunk, i, m.framed); err != nil {
			return err
		}
	}
	return nil
}

// add adds an event to the bytes that are compressed for this watch alone.
func (m *streamMember) add(r *Run, c *chunk, at int, framed bool) error {
	event, err := r.event(c, at)
	if err != nil {
		return err
	}
	if framed {
		m.plain = binary.BigEndian.AppendUint32(m.plain, uint32(len(event)))
	}
	m.plain = append(m.plain, event...)
	return nil
}

// own writes bytes that are for this watch alone.
func (m *streamMember) own(out *collected, p []byte) error {
	if err := m.breakOff(); err != nil {
		return err
	}
	m.plain = append(m.plain, p...)
	if len(m.plain) < memberWrites {
		return out.err
	}
	return m.settle(out)
}

// shared writes events that are already compressed.
func (m *streamMember) shared(out *collected, d *deflated) error {
	if err := m.settle(out); err != nil {
		return err
	}
	return m.put(out, d)
}

// settle compresses all pending bytes.
func (m *streamMember) settle(out *collected) error {
	if err := m.breakOff(); err != nil {
		return err
	}
	p := m.plain
	m.plain = nil // a watch may be idle for long
	switch {
	case len(p) == 0:
		return out.err
	case len(p) > storedBytes:
		return m.put(out, deflate(p))
	}
	return m.put(out, &deflated{
		blocks: appendStored(nil, p, false), length: uint32(len(p)), checksum: crc32.ChecksumIEEE(p), shift: byteShift(len(p)),
	})
}

// put adds blocks to the member.
func (m *streamMember) put(out *collected, d *deflated) error {
	if err := m.begin(out); err != nil {
		return err
	}
	m.checksum = appendedChecksum(m.checksum, d.checksum, d.shift)
	m.length += int(d.length)
	return out.add(d.blocks)
}

func (m *streamMember) begin(out *collected) error {
	if m.begun {
		return nil
	}
	m.begun = true
	return out.add(gzipHeader[:])
}

// end ends the member.
func (m *streamMember) end(out *collected) error {
	if err := m.settle(out); err != nil {
		return err
	}
	if err := m.begin(out); err != nil {
		return err
	}
	return out.add(appendGzipTrailer(appendStored(nil, nil, true), m.checksum, m.length))
}

// Events finds the compressed form of watch events by their bytes, for the responses of
// compressed watches. The encoder of an event keeps it here ([Events.Keep]).
type Events struct {
	// on: there was a watch that is compressed.
	on atomic.Bool
	of sync.Map // of *Event, by the hash of its bytes
}

// Event is the bytes of one watch event that several watches are sent, and their
// compressed form once somebody has needed it.
type Event struct {
	all   *Events
	plain []byte
	// add counts the bytes of the compressed form, and discounts them.
	add func(int64)

	mu struct {
		sync.Mutex
		deflated *deflated // nil until it is needed
		dropped  bool
	}
}

// Keep keeps the bytes of an event until Drop. add is called, with no lock held, with the
// difference when the event takes more or less memory. Keep returns nil as long as no watch
// is compressed, and on nil.
func (e *Events) Keep(plain []byte, add func(int64)) *Event {
	if e == nil || !e.on.Load() || len(plain) == 0 {
		return nil
	}
	event := &Event{all: e, plain: plain, add: add}
	e.of.Store(maphash.Bytes(seed, plain), event)
	return event
}

// Drop forgets the event. It does nothing on nil.
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

// find returns the event that has these bytes; nil if there is none.
func (e *Events) find(p []byte) *Event {
	found, ok := e.of.Load(maphash.Bytes(seed, p))
	if !ok || !bytes.Equal(found.(*Event).plain, p) {
		return nil
	}
	return found.(*Event)
}

// compressed returns the event, compressed: once for all who ask.
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
