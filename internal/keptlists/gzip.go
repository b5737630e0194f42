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

// deflated is bytes as DEFLATE blocks (RFC 1951) that end at a byte, refer to nothing before
// them, and are not the last: they can be put together in any order. It never changes.
type deflated struct {
	blocks []byte
	// length is the number of bytes that the blocks stand for, checksum their
	// crc32.IEEE, and shift is byteShift(length).
	length, checksum, shift uint32
	// framed: each item has its length in front of it, in four bytes, as the events
	// of a watch in protobuf have.
	framed bool
}

// deflateLevel is the level that k8s.io/apiserver compresses responses with.
const deflateLevel = flate.BestSpeed

// deflater makes deflated. Its memory is much more than that of a chunk.
type deflater struct {
	compressor *flate.Writer
	blocks     bytes.Buffer
}

var deflaters = sync.Pool{New: func() any {
	d := &deflater{}
	var err error
	if d.compressor, err = flate.NewWriter(&d.blocks, deflateLevel); err != nil {
		panic(err) // the level is not one
	}
	return d
}}

// deflate compresses p.
func deflate(p []byte) *deflated {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.blocks.Reset()
	d.compressor.Reset(&d.blocks)
	// Writes to a buffer do not fail. Flush ends the blocks at a byte with an empty one.
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

// deflatedOverhead is the size of a deflated without its blocks, in bytes.
const deflatedOverhead = 40

// size is the memory that d takes, in bytes.
func (d *deflated) size() int64 {
	if d == nil {
		return 0
	}
	return int64(cap(d.blocks)) + deflatedOverhead
}

var inflaters = sync.Pool{New: func() any { return flate.NewReader(bytes.NewReader(nil)) }}

// inflate returns the bytes that d was made of, in a slice with room for more.
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

// maxStored is the most bytes that a stored block has.
const maxStored = 1<<16 - 1

// appendStored appends p as stored blocks. If final, the last one ends the stream.
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

// gzipHeader is that of k8s.io/apiserver's responses: no name, no time, the level
// that is fastest, an unknown system (RFC 1952).
var gzipHeader = [10]byte{0: 0x1f, 1: 0x8b, 2: 8, 8: 4, 9: 255}

// beginGzip begins a compressed response with the header, and begin as it is.
func beginGzip(w http.ResponseWriter, begin []byte) error {
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(appendStored(append(make([]byte, 0, len(begin)+32), gzipHeader[:]...), begin, false))
	return err
}

// The checksum of a list is combined from those of its chunks. Appending n bytes
// multiplies the checksum by x^8n and adds the checksum of the n bytes, modulo the
// polynomial of crc32.IEEE. Polynomials are written as hash/crc32 writes them: bit 31 is
// the coefficient of x^0.

// one is the polynomial 1.
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

// byteShift returns x^8n, for n that is not negative.
func byteShift(n int) uint32 {
	shift := uint32(one)
	for k := 0; n>>k != 0; k++ {
		if n>>k&1 != 0 {
			shift = product(byteShifts[k], shift)
		}
	}
	return shift
}

// appendedChecksum returns the checksum of some bytes and others after them,
// from the checksum of each, and byteShift of the length of the others.
func appendedChecksum(checksum, others, shift uint32) uint32 {
	return product(checksum, shift) ^ others
}

// member is the body of a response as one member of gzip (RFC 1952), because many clients
// stop after the first. Its blocks were made for any number of responses; its checksum is
// combined from those of its parts.
type member struct {
	out      collected
	checksum uint32
	length   int
}

// stored adds p as it is.
func (m *member) stored(p []byte) error {
	m.count(p)
	return m.out.add(appendStored(nil, p, false))
}

// count counts bytes that were written already.
func (m *member) count(p []byte) {
	m.checksum = crc32.Update(m.checksum, crc32.IEEETable, p)
	m.length += len(p)
}

// add adds bytes that are compressed.
func (m *member) add(d *deflated) error {
	m.checksum = appendedChecksum(m.checksum, d.checksum, d.shift)
	m.length += int(d.length)
	return m.out.add(d.blocks)
}

// end adds the last bytes, and sends everything.
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

// collectedBytes is the size of writes in bytes, which HTTP/2 cuts into frames of
// 16 KiB: small writes would each wake up the goroutine of the connection.
const collectedBytes = 64 << 10

// collected is a buffer in front of a response.
type collected struct {
	to     io.Writer
	buffer *[]byte // nil if there is nothing
	err    error   // of the last send
}

var collectedBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, collectedBytes)
	return &b
}}

// add writes p, now or with later bytes.
func (c *collected) add(p []byte) error {
	if c.buffer != nil && len(*c.buffer)+len(p) > collectedBytes {
		_ = c.send() // which is the error of everything that follows
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

// send writes the collected bytes. After a failed write all writes fail, and the buffer
// is not used again, because HTTP/2 may still be reading it: another response in it would
// be sent there.
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

// writeMember writes a list of parts after its beginning, compressed. What beginGzip has
// written, and this, are one member: separators are stored blocks, parts are the blocks that
// are kept of them, and the last block has the end of the frame.
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
