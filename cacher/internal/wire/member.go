// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"hash/crc32"
	"io"
	"sync"
)

// A compressed list is one member of gzip (RFC 1952), as many clients stop after
// the first: the frame's beginning and the separators as stored blocks, the
// chunks as the blocks that are kept of them, and a last block with the end of
// the frame. The checksum of the whole is combined of those of the parts.

// memberWrites is the size of writes in bytes, which HTTP/2 cuts into frames of
// 16 KiB: small writes would each wake up the goroutine of the connection.
const memberWrites = 64 << 10

var memberWriters = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, memberWrites) }}

// writeMember writes what follows the beginning of the list, which stands for
// gzipHeader and a stored block.
func (a *assembly) writeMember(w io.Writer, begin []byte) error {
	if checkEach {
		return a.writeProvenMember(w, begin)
	}
	return a.writeBlocks(w, begin)
}

func (a *assembly) writeBlocks(w io.Writer, begin []byte) (err error) {
	out := memberWriters.Get().(*bufio.Writer)
	defer func() {
		// HTTP/2 may still read what it was given when a Write has failed, because the
		// client has ended the stream. Another list in this buffer would be sent there.
		if err == nil {
			out.Reset(nil) // keeps nothing of the request
			memberWriters.Put(out)
		}
	}()
	out.Reset(w)
	separator := appendStored(nil, a.separator, false)
	checksum, length := crc32.ChecksumIEEE(begin), len(begin)
	for i := range a.parts {
		if i > 0 && len(a.separator) > 0 {
			checksum = crc32.Update(checksum, crc32.IEEETable, a.separator)
			length += len(a.separator)
			if _, err := out.Write(separator); err != nil {
				return err
			}
		}
		d := a.deflated(&a.parts[i])
		checksum = appendedChecksum(checksum, d.checksum, d.shift)
		length += d.length
		if _, err := out.Write(d.blocks); err != nil {
			return err
		}
	}
	a.store.share.Settle()
	checksum = crc32.Update(checksum, crc32.IEEETable, a.frame.tail)
	length += len(a.frame.tail)
	end := appendStored(nil, a.frame.tail, true)
	if _, err := out.Write(appendGzipTrailer(end, checksum, length)); err != nil {
		return err
	}
	return out.Flush()
}

// deflated returns the chunk of a part without its last separator, compressed. The
// compressed form is kept from the second list on that needs it, and at once if
// there was no room for the plain bytes.
func (a *assembly) deflated(p *part) *deflated {
	again := a.store.usedCompressed(p.chunk)
	has := p.chunk.content.Load()
	if has.deflated != nil {
		return has.deflated
	}
	made := deflate(has.plain[:len(has.plain)-len(a.separator)])
	if again {
		a.store.complete(p.chunk, content{deflated: made})
	}
	if p.keep {
		a.store.keepCompressed(p.chunk, made)
	}
	return made
}

// writeProvenMember compares what a client would read with the list.
func (a *assembly) writeProvenMember(w io.Writer, begin []byte) error {
	var member, want bytes.Buffer
	if err := a.writeBlocks(&member, begin); err != nil {
		return err
	}
	if err := a.writePlain(&want); err != nil {
		return err
	}
	whole := appendStored(append([]byte{}, gzipHeader[:]...), begin, false)
	r, err := gzip.NewReader(bytes.NewReader(append(whole, member.Bytes()...)))
	if err != nil {
		panic(err)
	}
	r.Multistream(false)
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(want.Bytes(), got) {
		panic(errors.Join(err, errors.New("a compressed list differs from the list")))
	}
	_, err = w.Write(member.Bytes())
	return err
}
