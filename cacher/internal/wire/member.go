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

// member is the rest of a compressed list after its beginning, which stands for
// gzipHeader and a stored block. The whole is one member of gzip (RFC 1952), as many
// clients stop after the first: separators are stored blocks, chunks are the blocks
// that are kept of them, and the last block has the end of the frame. The checksum
// of the whole is combined of those of the parts.
type member struct {
	begin, separator, tail []byte
	// chunks is how many there are; deflated makes it fewer if a chunk is all the rest.
	chunks   int
	deflated func(chunk int) (*deflated, error)
}

// memberWrites is the size of writes in bytes, which HTTP/2 cuts into frames of
// 16 KiB: small writes would each wake up the goroutine of the connection.
const memberWrites = 64 << 10

var memberWriters = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, memberWrites) }}

func (m *member) write(w io.Writer) (err error) {
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
	separator := appendStored(nil, m.separator, false)
	checksum, length := crc32.ChecksumIEEE(m.begin), len(m.begin)
	for i := 0; i < m.chunks; i++ { // which deflated may lower
		if i > 0 && len(m.separator) > 0 {
			checksum = crc32.Update(checksum, crc32.IEEETable, m.separator)
			length += len(m.separator)
			if _, err := out.Write(separator); err != nil {
				return err
			}
		}
		d, err := m.deflated(i)
		if err != nil {
			return err
		}
		checksum = appendedChecksum(checksum, d.checksum, d.shift)
		length += int(d.length)
		if _, err := out.Write(d.blocks); err != nil {
			return err
		}
	}
	checksum = crc32.Update(checksum, crc32.IEEETable, m.tail)
	length += len(m.tail)
	end := appendStored(nil, m.tail, true)
	if _, err := out.Write(appendGzipTrailer(end, checksum, length)); err != nil {
		return err
	}
	return out.Flush()
}

// writeProven writes the member if that is what plain writes, and panics if not:
// the member is read as a client does.
func (m *member) writeProven(w io.Writer, plain func(io.Writer) error) error {
	var made, want bytes.Buffer
	if err := m.write(&made); err != nil {
		return err
	}
	if err := plain(&want); err != nil {
		return err
	}
	whole := appendStored(append([]byte{}, gzipHeader[:]...), m.begin, false)
	r, err := gzip.NewReader(bytes.NewReader(append(whole, made.Bytes()...)))
	if err != nil {
		panic(err)
	}
	r.Multistream(false)
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(want.Bytes(), got) {
		panic(errors.Join(err, errors.New("a compressed list differs from the list")))
	}
	_, err = w.Write(made.Bytes())
	return err
}

// writeMember writes what follows the beginning of the list.
func (a *assembly) writeMember(w io.Writer, begin []byte) error {
	m := a.member(begin)
	defer a.store.share.Settle()
	if checkEach {
		return m.writeProven(w, a.writePlain)
	}
	return m.write(w)
}

func (a *assembly) member(begin []byte) *member {
	m := &member{begin: begin, separator: a.separator, tail: a.frame.tail, chunks: len(a.parts)}
	written := 0
	m.deflated = func(i int) (*deflated, error) {
		p := &a.parts[i]
		if p.chunk == nil && a.rest.make(a, i) != nil {
			m.chunks = i + 1
			return a.rest.deflatedFrom(len(begin)+written, a.frame.tail)
		}
		written += p.chunk.length()
		defer a.release(p)
		return a.deflated(p), nil
	}
	return m
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
	plain := has.plain
	if plain == nil {
		plain = bytes.Join(has.pieces, nil)
	}
	made := deflate(plain[:len(plain)-len(a.separator)])
	if again {
		a.store.complete(p.chunk, content{deflated: made})
	}
	if p.keep {
		a.store.keepCompressed(p.chunk, made)
	}
	return made
}
