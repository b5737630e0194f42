// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"
)

// lengthBytes is the size of the length in front of each event in protobuf.
const lengthBytes = 4

// collected is what is about to be written to a response. Small writes would each
// wake up the goroutine of the connection.
type collected struct {
	to     io.Writer
	buffer *[]byte // nil if there is nothing
	err    error   // of the last send
}

var collectedBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, memberWrites)
	return &b
}}

// add writes p, now or with what comes next.
func (c *collected) add(p []byte) error {
	if c.err != nil {
		return c.err
	}
	if c.buffer != nil && len(*c.buffer)+len(p) > memberWrites {
		if err := c.send(); err != nil {
			return err
		}
	}
	if len(p) > memberWrites {
		_, c.err = c.to.Write(p)
		return c.err
	}
	if c.buffer == nil {
		c.buffer = collectedBuffers.Get().(*[]byte)
	}
	*c.buffer = append(*c.buffer, p...)
	return nil
}

// send writes what was collected. Once a write has failed, all do; and its buffer is
// not used again, because the connection may still be reading it.
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

// storedBytes is up to how many bytes are not worth compressing.
const storedBytes = 32

// streamMember is the body of one watch as a member of gzip.
type streamMember struct {
	begun    bool
	checksum uint32
	length   int
	// plain is what was written and is still to be compressed, for this watch alone.
	plain []byte
	// run and chunk are those whose events were written up to the one before at, and
	// are still to be sent: nil if there are none.
	run    *Run
	chunk  *chunk
	at     int
	framed bool
}

// initial writes an event of a run. The events of a run that come one after the
// other are sent in their compressed form once the last one has come.
func (m *streamMember) initial(out *collected, n *next) error {
	if m.run != n.run || m.chunk != n.chunk || m.at != n.at || m.framed != n.framed {
		if err := m.breakOff(); err != nil {
			return err
		}
		if n.at > 0 {
			return m.add(n.run, n.chunk, n.at, n.framed)
		}
		m.run, m.chunk, m.at, m.framed = n.run, n.chunk, 0, n.framed
	}
	if m.at++; m.at < len(m.chunk.ids) {
		return nil
	}
	store := m.run.of.store
	d, err := store.deflatedOf(m.chunk, m.framed)
	store.share.Settle()
	m.run, m.chunk, m.at = nil, nil, 0
	if err != nil {
		return err
	}
	return m.shared(out, d)
}

// breakOff has the events of a run that does not go on compressed by themselves.
func (m *streamMember) breakOff() error {
	run, chunk, n := m.run, m.chunk, m.at
	m.run, m.chunk, m.at = nil, nil, 0
	for i := range n {
		if err := m.add(run, chunk, i, m.framed); err != nil {
			return err
		}
	}
	return nil
}

// add adds an event to what is compressed for this watch.
func (m *streamMember) add(r *Run, c *chunk, at int, framed bool) error {
	event, err := r.event(c, at)
	if err != nil {
		return err
	}
	if framed {
		m.plain = binary.BigEndian.AppendUint32(m.plain, uint32(len(event)))
	}
	m.plain = append(m.plain, event...)
	return nil
}

// own writes bytes that are for this watch alone.
func (m *streamMember) own(out *collected, p []byte) error {
	if err := m.breakOff(); err != nil {
		return err
	}
	m.plain = append(m.plain, p...)
	if len(m.plain) < memberWrites {
		return out.err
	}
	return m.settle(out)
}

// shared writes what was compressed already.
func (m *streamMember) shared(out *collected, d *deflated) error {
	if err := m.settle(out); err != nil {
		return err
	}
	return m.put(out, d)
}

// settle compresses what was written so far.
func (m *streamMember) settle(out *collected) error {
	if err := m.breakOff(); err != nil {
		return err
	}
	p := m.plain
	m.plain = nil // a watch may be idle for long
	switch {
	case len(p) == 0:
		return out.err
	case len(p) > storedBytes:
		return m.put(out, deflate(p))
	}
	return m.put(out, &deflated{
		blocks: appendStored(nil, p, false), length: uint32(len(p)), checksum: crc32.ChecksumIEEE(p), shift: byteShift(len(p)),
	})
}

// put adds blocks to the member.
func (m *streamMember) put(out *collected, d *deflated) error {
	if err := m.begin(out); err != nil {
		return err
	}
	m.checksum = appendedChecksum(m.checksum, d.checksum, d.shift)
	m.length += int(d.length)
	return out.add(d.blocks)
}

func (m *streamMember) begin(out *collected) error {
	if m.begun {
		return nil
	}
	m.begun = true
	return out.add(gzipHeader[:])
}

// end ends the member.
func (m *streamMember) end(out *collected) error {
	if err := m.settle(out); err != nil {
		return err
	}
	if err := m.begin(out); err != nil {
		return err
	}
	return out.add(appendGzipTrailer(appendStored(nil, nil, true), m.checksum, m.length))
}
