// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"unsafe"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// response connects a request that may be answered compressed with the encoder
// that writes the answer. The request's context carries the response to the
// cache, which notes it with the list.
//
// An encoder gets a writer that it knows nothing of: that of an audit log, or
// one of the server's, which compresses what it is given. So the encoder offers
// the bytes that it writes first, and writes them. If the writer of the response is
// handed the same slice, nothing between the two has copied, buffered or
// compressed it. Then, and only then, the writer takes the offer: it sends the
// beginning of a compressed body in their place, and the encoder goes on with
// what it has compressed. Otherwise the encoder goes on as it has begun.
type response struct{ offered atomic.Pointer[offer] }

// offer is the beginning of a list.
type offer struct {
	to      *response
	plain   []byte
	instead []byte // what stands for it in a compressed body
	taken   atomic.Bool
}

// compressedFrom is the length, in bytes, of the longest body that k8s.io/apiserver
// does not compress.
const compressedFrom = 128 << 10

// offer offers the beginning of a body of the given length. offer returns nil if
// the server would not compress the body. The caller withdraws the offer once plain
// was written.
func (r *response) offer(plain []byte, length int) *offer {
	// The server's writer holds a first write back that is as short as that of a
	// streaming encoder, and compresses a long one itself.
	if r == nil || length <= compressedFrom || len(plain) <= streamingWrite || len(plain) > compressedFrom {
		return nil
	}
	o := &offer{to: r, plain: plain}
	o.instead = appendStored(append(make([]byte, 0, len(plain)+32), gzipHeader[:]...), plain, false)
	if !r.offered.CompareAndSwap(nil, o) {
		return nil
	}
	return o
}

// withdraw ends the offer, and reports whether it was taken.
func (o *offer) withdraw() bool {
	o.to.offered.CompareAndSwap(o, nil)
	return o.taken.Load()
}

// body is a list about to be written: plain as a whole, plain from the first item
// on, or compressed from there on.
type body interface {
	writePlain(w io.Writer) error
	writeItems(w io.Writer) error
	writeMember(w io.Writer, begin []byte) error
}

// write writes a body of the given beginning and length, compressed if w is that of
// a response which takes the offer.
func (r *response) write(w io.Writer, begin []byte, length int, b body) error {
	o := r.offer(begin, length)
	if o == nil {
		return b.writePlain(w)
	}
	_, err := w.Write(begin)
	switch taken := o.withdraw(); {
	case err != nil:
		return err
	case taken:
		return b.writeMember(w, begin)
	}
	return b.writeItems(w)
}

type responseKey struct{}

// responseOf returns what Compress has put into the context of a request, for Note.
func responseOf(ctx context.Context) *response {
	r, _ := ctx.Value(responseKey{}).(*response)
	return r
}

// Compress returns a handler for the requests of next, whose lists may be
// answered with bytes that are compressed already. accepts says which requests
// next, of itself, would answer with gzip if the answer is long: only those are.
// Nothing else changes. Compress stands within everything that looks at the
// response's header or counts its bytes.
func (l *Listings) Compress(next http.Handler, accepts func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if !l.on.Load() || !accepts(request) {
			next.ServeHTTP(w, request)
			return
		}
		taker := &responseWriter{ResponseWriter: w, response: &response{}}
		ctx := context.WithValue(request.Context(), responseKey{}, taker.response)
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(taker), request.WithContext(ctx))
		taker.sendHeader()
	})
}

// responseWriter takes the offer of an encoder. All else it passes on.
type responseWriter struct {
	http.ResponseWriter
	response *response
	// status is that of a header which waits for the first bytes, because an offer
	// is open; 0 if none does.
	status int
}

var _ responsewriter.UserProvidedDecorator = (*responseWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(status int) {
	if w.status == 0 && status == http.StatusOK && w.response.offered.Load() != nil {
		w.status = status
		return
	}
	w.sendHeader()
	w.ResponseWriter.WriteHeader(status)
}

// sendHeader sends the header that waits.
func (w *responseWriter) sendHeader() {
	if w.status != 0 {
		status := w.status
		w.status = 0
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		return w.ResponseWriter.Write(p)
	}
	o := w.response.offered.Load()
	header := w.Header()
	if o == nil || !sameSlice(o.plain, p) || header.Get("Content-Encoding") != "" || header.Get("Content-Length") != "" {
		w.sendHeader()
		return w.ResponseWriter.Write(p)
	}
	header.Set("Content-Encoding", "gzip")
	header.Add("Vary", "Accept-Encoding")
	w.sendHeader()
	o.taken.Store(true)
	if _, err := w.ResponseWriter.Write(o.instead); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() {
	w.sendHeader()
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// sameSlice reports whether two slices are the same bytes in memory.
func sameSlice(a, b []byte) bool {
	return len(a) == len(b) && unsafe.SliceData(a) == unsafe.SliceData(b)
}
