// SPDX-License-Identifier: Apache-2.0

package keptlists

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"net/http"
	"slices"
	"sync"
)

// deflated is a sequence of DEFLATE blocks (RFC 1951) that ends at a byte boundary, refers to
// nothing before it, and has no final block, so that sequences can be concatenated. Immutable.
type deflated struct {
	blocks []byte
	// length and checksum (crc32.IEEE) are those of the plain bytes. shift is byteShift(length).
	length, checksum, shift uint32
	// framed is true if a four-byte length precedes each item, as in a protobuf watch.
	framed bool
}

// deflateLevel is the level of k8s.io/apiserver's compressed responses.
const deflateLevel = flate.BestSpeed

// deflater makes deflateds. It is pooled because it is much larger than a chunk.
type deflater struct {
	compressor *flate.Writer
	blocks     bytes.Buffer
}

var deflaters = sync.Pool{New: func() any {
	d := &deflater{}
	var err error
	if d.compressor, err = flate.NewWriter(&d.blocks, deflateLevel); err != nil {
		panic(err) // invalid level
	}
	return d
}}

func deflate(p []byte) *deflated {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.blocks.Reset()
	d.compressor.Reset(&d.blocks)
	// Writes to a buffer don't fail. Flush ends the blocks at a byte boundary with an empty block.
	if _, err := d.compressor.Write(p); err != nil {
		panic(err)
	}
	if err := d.compressor.Flush(); err != nil {
		panic(err)
	}
	return &deflated{
		blocks: slices.Clone(d.blocks.Bytes()), length: uint32(len(p)),
		checksum: crc32.ChecksumIEEE(p), shift: byteShift(len(p)),
	}
}

// deflatedOverhead is the size of a deflated without blocks, in bytes.
const deflatedOverhead = 40

func (d *deflated) size() int64 {
	if d == nil {
		return 0
	}
	return int64(cap(d.blocks)) + deflatedOverhead
}

var inflaters = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}

// inflate returns the plain bytes, with capacity for more.
func (d *deflated) inflate(more int) ([]byte, error) {
	r := inflaters.Get().(io.Reader)
	defer inflaters.Put(r)
	if err := r.(flate.Resetter).Reset(bytes.NewReader(d.blocks), nil); err != nil {
		return nil, err
	}
	p := make([]byte, d.length, int(d.length)+more)
	if _, err := io.ReadFull(r, p); err != nil {
		return nil, fmt.Errorf("bytes that were compressed can't be read: %w", err)
	}
	return p, nil
}

// maxStored is the maximum length of a stored block.
const maxStored = 1<<16 - 1

// appendStored appends p as stored blocks, the last of which ends the stream if final.
func appendStored(to, p []byte, final bool) []byte {
	for {
		n := min(len(p), maxStored)
		head := byte(0)
		if final && n == len(p) {
			head = 1
		}
		to = append(to, head)
		to = binary.LittleEndian.AppendUint16(to, uint16(n))
		to = binary.LittleEndian.AppendUint16(to, ^uint16(n))
		to = append(to, p[:n]...)
		if p = p[n:]; len(p) == 0 {
			return to
		}
	}
}

// gzipHeader is that of k8s.io/apiserver, with no name, no time, fastest level and unknown system
// (RFC 1952).
var gzipHeader = [10]byte{0: 0x1f, 1: 0x8b, 2: 8, 8: 4, 9: 255}

func beginGzip(w http.ResponseWriter, begin []byte) error {
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(appendStored(append(make([]byte, 0, len(begin)+32), gzipHeader[:]...), begin, false))
	return err
}

// A list's checksum combines those of its chunks. Appending n bytes multiplies it by x^8n and adds
// their checksum, modulo the polynomial of crc32.IEEE. As in hash/crc32, bit 31 is the coefficient
// of x^0.

const one = 1 << 31

// byteShifts has x^(8·2^k) at k.
var byteShifts = func() (powers [bits.UintSize]uint32) {
	powers[0] = one >> 8
	for k := 1; k < len(powers); k++ {
		powers[k] = product(powers[k-1], powers[k-1])
	}
	return powers
}()

// product multiplies two polynomials modulo that of crc32.IEEE.
func product(a, b uint32) (sum uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			sum ^= b
		}
		overflow := b & 1
		b >>= 1
		if overflow != 0 {
			b ^= crc32.IEEE
		}
	}
	return sum
}

// byteShift returns x^8n for n >= 0.
func byteShift(n int) uint32 {
	shift := uint32(one)
	for k := 0; n>>k != 0; k++ {
		if n>>k&1 != 0 {
			shift = product(byteShifts[k], shift)
		}
	}
	return shift
}

// appendedChecksum returns the checksum of concatenated bytes from both checksums and the byteShift
// of the second length.
func appendedChecksum(checksum, others, shift uint32) uint32 {
	return product(checksum, shift) ^ others
}

// member is a response body as one gzip member (RFC 1952), because many clients stop after the
// first.
type member struct {
	out      collected
	checksum uint32
	length   int
}

func (m *member) stored(p []byte) error {
	m.count(p)
	return m.out.add(appendStored(nil, p, false))
}

// count accounts for written bytes.
func (m *member) count(p []byte) {
	m.checksum = crc32.Update(m.checksum, crc32.IEEETable, p)
	m.length += len(p)
}

func (m *member) add(d *deflated) error {
	m.checksum = appendedChecksum(m.checksum, d.checksum, d.shift)
	m.length += int(d.length)
	return m.out.add(d.blocks)
}

// end adds the last bytes and sends everything.
func (m *member) end(last []byte) error {
	m.count(last)
	end := appendStored(nil, last, true)
	end = binary.LittleEndian.AppendUint32(end, m.checksum)
	end = binary.LittleEndian.AppendUint32(end, uint32(m.length))
	if err := m.out.add(end); err != nil {
		return err
	}
	return m.out.send()
}

// collectedBytes is the size of writes. HTTP/2 splits them into 16 KiB frames; small writes would
// each wake the connection's goroutine.
const collectedBytes = 64 << 10

// collected buffers writes to a response.
type collected struct {
	to     io.Writer
	buffer *[]byte // nil if empty
	err    error   // of the last send
}

var collectedBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, collectedBytes)
	return &b
}}

// add writes p, now or with later bytes.
func (c *collected) add(p []byte) error {
	if c.buffer != nil && len(*c.buffer)+len(p) > collectedBytes {
		_ = c.send() // sets c.err
	}
	if c.err != nil {
		return c.err
	}
	if len(p) > collectedBytes {
		_, c.err = c.to.Write(p)
		return c.err
	}
	if c.buffer == nil {
		c.buffer = collectedBuffers.Get().(*[]byte)
	}
	*c.buffer = append(*c.buffer, p...)
	return nil
}

// send writes the collected bytes. After an error all writes fail, and the buffer isn't reused:
// HTTP/2 may still read it and leak another response.
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

// writeMember completes the gzip member begun by beginGzip. Separators are stored blocks.
func (f *frame) writeMember(w io.Writer, begin []byte, parts int, deflated func(i int) (*deflated, error)) error {
	m := member{out: collected{to: w}}
	m.count(begin)
	separator := f.syntax.separator()
	for i := range parts {
		if i > 0 && len(separator) > 0 {
			if err := m.stored(separator); err != nil {
				return err
			}
		}
		d, err := deflated(i)
		if err == nil {
			err = m.add(d)
		}
		if err != nil {
			return err
		}
	}
	return m.end(f.tail)
}

func (a *assembly) writeMember(w io.Writer, begin []byte) error {
	return a.frame.writeMember(w, begin, len(a.parts), a.deflated)
}
