// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"reflect"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/server/routine"
)

// Stream connects the response to a watch with the cache that sends its events, as
// response does for lists: the context of the request carries the Stream to the
// cache. Initial events are collected, so that the connection gets many at once.
// The body of a watch that the server would compress is one member of gzip, of
// blocks that were made once for all watches that are sent the same (member.go).
//
// A Stream is for the goroutine that serves the watch.
type Stream struct {
	// to is nil until the response has begun.
	to *streamWriter
	// next is the initial event that is about to be written.
	next next
	// proven is a writer of which what is written has come to the response as it is.
	proven io.Writer
}

// next is an initial event on its way to the response.
type next struct {
	run   *Run
	chunk *chunk
	at    int
	// bytes are what is written: the event, or what stands for it.
	bytes  []byte
	framed bool // the event's length was written
	taken  bool // the event has come to the response
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
		s.next.bytes = blank[:n]
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

// Stream returns a handler for the requests of next, in which watches are answered
// as Stream says. asks reports whether a request is a watch, and whether next, of
// itself, would compress the answer. Requests that are none are left alone. Stream
// stands within everything that looks at the response's header or counts its bytes.
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
	// wanted: the watch is to be compressed, if it is one.
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
	case initial && sameSlice(next.bytes, p):
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

// Flush implements http.Flusher. Within a run, Flush leaves the events to the next
// one: the rest of the run is on its way to the watch's channel, or the end of the
// watch.
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
	_ = w.out.send() // if the client is gone, nobody is to be told
}
