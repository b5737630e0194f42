// SPDX-License-Identifier: Apache-2.0

package watchcache

import "sync"

// Encodings are the serializations of one element, by an identifier of version,
// format and framing. Serializations are the only part of an element that is
// made after the element was published: each is made once and shared by all
// readers.
type Encodings struct {
	mu struct {
		sync.Mutex
		made []*Encoding // a handful at most
	}
}

// Encoding is one serialization. Bytes and Err never change once made.
type Encoding struct {
	id    string
	once  sync.Once
	bytes []byte
	err   error
}

// Get returns the serialization with the identifier, and calls encode if there
// is none yet; created is true for the one caller whose encode was called.
// Concurrent callers wait for that one. An error of encode is kept and returned
// like a result; call Drop to try again.
func (e *Encodings) Get(id string, encode func() ([]byte, error)) (bytes []byte, created bool, err error) {
	encoding := e.entry(id)
	encoding.once.Do(func() {
		encoding.err = errAbandoned // unless encode returns
		encoding.bytes, encoding.err = encode()
		created = true
	})
	if encoding.err == errAbandoned {
		e.Drop(id)
	}
	return encoding.bytes, created, encoding.err
}

func (e *Encodings) entry(id string) *Encoding {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, encoding := range e.mu.made {
		if encoding.id == id {
			return encoding
		}
	}
	encoding := &Encoding{id: id}
	e.mu.made = append(e.mu.made, encoding)
	return encoding
}

// Drop forgets the serialization with the identifier; the next Get makes it
// again. Bytes that Get has returned stay valid.
func (e *Encodings) Drop(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, encoding := range e.mu.made {
		if encoding.id == id {
			last := len(e.mu.made) - 1
			e.mu.made[i] = e.mu.made[last]
			e.mu.made[last] = nil
			e.mu.made = e.mu.made[:last]
			return
		}
	}
}
