// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"
	"unsafe"
)

// deflated is bytes as DEFLATE blocks (RFC 1951) that end at a byte, refer to
// nothing before them, and are not the last: such blocks can be put together in
// any order. deflated never changes.
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

// size is the memory that d takes, in bytes.
func (d *deflated) size() int64 {
	if d == nil {
		return 0
	}
	return int64(cap(d.blocks)) + int64(unsafe.Sizeof(*d))
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

// appendStored appends p as stored blocks, the last of which is the last one of
// all if final.
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

// appendGzipTrailer appends the end of a member with the checksum and length of
// what it stands for.
func appendGzipTrailer(to []byte, checksum uint32, length int) []byte {
	to = binary.LittleEndian.AppendUint32(to, checksum)
	return binary.LittleEndian.AppendUint32(to, uint32(length))
}
