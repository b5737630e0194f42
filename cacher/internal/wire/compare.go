// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
)

// errDiffers ends a comparison.
var errDiffers = errors.New("the bytes differ")

// comparison is a writer that compares what it is given with pieces of bytes, and
// keeps neither: a list may be large.
type comparison struct {
	rest    [][]byte
	differs bool
}

// comparisonWith returns a comparison with what write writes, slice by slice,
// which must not be changed any more.
func comparisonWith(write func(io.Writer) error) (*comparison, error) {
	c := &comparison{}
	return c, write(c.expecting())
}

// expecting returns a writer of what is expected.
func (c *comparison) expecting() io.Writer {
	return writeTo(func(p []byte) (int, error) {
		if len(p) > 0 {
			c.rest = append(c.rest, p)
		}
		return len(p), nil
	})
}

// copying returns write for a comparison, if write reuses the slices that it writes.
func copying(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		return write(writeTo(func(p []byte) (int, error) { return w.Write(bytes.Clone(p)) }))
	}
}

type writeTo func([]byte) (int, error)

func (w writeTo) Write(p []byte) (int, error) { return w(p) }

// Write implements io.Writer.
func (c *comparison) Write(p []byte) (int, error) {
	written := len(p)
	for len(p) > 0 {
		n := 0
		if len(c.rest) > 0 {
			n = min(len(p), len(c.rest[0]))
		}
		if n == 0 || !bytes.Equal(p[:n], c.rest[0][:n]) {
			c.differs = true
			return 0, errDiffers
		}
		p = p[n:]
		if c.rest[0] = c.rest[0][n:]; len(c.rest[0]) == 0 {
			c.rest = c.rest[1:]
		}
	}
	return written, nil
}

// same reports whether exactly what is expected was written.
func (c *comparison) same() bool { return !c.differs && len(c.rest) == 0 }
