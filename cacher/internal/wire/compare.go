// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
	"iter"
)

// errDiffers ends a comparison.
var errDiffers = errors.New("the bytes differ")

// comparison is a writer that compares what it is given with pieces of bytes, and
// keeps neither: a list may be large.
type comparison struct {
	rest [][]byte
	// more returns what comes after rest, and false at the end; nil if rest is all.
	more    func() ([]byte, bool)
	failed  error // why more has ended too early
	differs bool
}

// comparisonAlong returns a comparison with what write writes, which it writes only as
// far as it is compared: a list of which much was decompressed or encoded for the
// comparison is never in memory as a whole. Call stop in the end.
func comparisonAlong(write func(io.Writer) error) (c *comparison, stop func()) {
	c = &comparison{}
	c.more, stop = iter.Pull(func(yield func([]byte) bool) {
		c.failed = write(writeTo(func(p []byte) (int, error) {
			if len(p) > 0 && !yield(p) {
				return 0, errDiffers
			}
			return len(p), nil
		}))
	})
	return c, stop
}

// pull makes rest have something, if anything is left.
func (c *comparison) pull() {
	if len(c.rest) == 0 && c.more != nil {
		if p, ok := c.more(); ok {
			c.rest = append(c.rest, p)
		}
	}
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

type writeTo func([]byte) (int, error)

func (w writeTo) Write(p []byte) (int, error) { return w(p) }

// Write implements io.Writer.
func (c *comparison) Write(p []byte) (int, error) {
	written := len(p)
	for len(p) > 0 {
		n := 0
		if c.pull(); len(c.rest) > 0 {
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
func (c *comparison) same() bool {
	c.pull()
	return !c.differs && c.failed == nil && len(c.rest) == 0
}
