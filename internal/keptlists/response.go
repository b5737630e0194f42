// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// compressedWriter is the response to a LIST that may be compressed. The list's encoder can't see
// where its writer leads, e.g. to an audit log or a compressor. So it offers the list's beginning
// here and then writes it. If exactly these bytes arrive, nothing between changes bytes:
// compressedWriter begins a compressed body instead, and the encoder continues with compressed
// bytes. All on one goroutine.
type compressedWriter struct {
	http.ResponseWriter
	// offered is the beginning that an encoder is writing, or nil.
	offered []byte
	taken   bool // the offered bytes arrived
	// status is that of a header held until the offered bytes arrive, otherwise 0.
	status int
}

// compressedFrom is the maximum length, in bytes, of bodies that k8s.io/apiserver doesn't compress.
const compressedFrom = 128 << 10

// body is a list or Table that may be sent compressed.
type body interface {
	// writePlain writes all of it uncompressed, writeItems all but its beginning.
	writePlain(w io.Writer) error
	writeItems(w io.Writer) error
	// writeMember writes it compressed, after beginGzip.
	writeMember(w io.Writer, begin []byte) error
}

// write writes a list that begins with begin, compressed if it is long and w leads to c, which may
// be nil.
func (c *compressedWriter) write(w io.Writer, begin []byte, long bool, list body) error {
	// The server's writer delays a first write this short, and compresses a long one itself.
	if c == nil || !long || len(begin) <= streamingWrite || len(begin) > compressedFrom {
		return list.writePlain(w)
	}
	c.offered, c.taken = begin, false
	_, err := w.Write(begin)
	c.offered = nil
	switch {
	case err != nil:
		return err
	case c.taken:
		return list.writeMember(w, begin)
	}
	return list.writeItems(w)
}

var _ responsewriter.UserProvidedDecorator = (*compressedWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (c *compressedWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c *compressedWriter) WriteHeader(status int) {
	if c.status == 0 && status == http.StatusOK && c.offered != nil {
		c.status = status
		return
	}
	c.sendHeader()
	c.ResponseWriter.WriteHeader(status)
}

func (c *compressedWriter) sendHeader() {
	if c.status != 0 {
		status := c.status
		c.status = 0
		c.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (c *compressedWriter) Write(p []byte) (int, error) {
	if c.status == 0 {
		return c.ResponseWriter.Write(p)
	}
	header := c.Header()
	if c.offered == nil || c.taken || !bytes.Equal(c.offered, p) || header.Get("Content-Encoding") != "" || header.Get("Content-Length") != "" {
		c.sendHeader()
		return c.ResponseWriter.Write(p)
	}
	c.status, c.taken = 0, true // for status OK
	if err := beginGzip(c.ResponseWriter, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (c *compressedWriter) Flush() {
	c.sendHeader()
	if flusher, ok := c.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}
