// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Events finds the compressed form of watch events by their bytes in memory. The
// encoder of an event keeps it here ([Events.Keep]); the response of each watch that
// is compressed finds it by the slice that it is given to write. Bytes that were
// kept never change and are at no other bytes' address as long as they are kept, so
// that what is found is right whoever writes them. The zero value has no events.
type Events struct {
	// on: there was a watch that is compressed.
	on atomic.Bool
	of sync.Map // of *Event, by the address of the first byte
}

// Event is the bytes of one watch event that several watches are sent, and their
// compressed form once somebody has needed it.
type Event struct {
	all   *Events
	plain []byte
	// add counts the bytes of the compressed form, and discounts them.
	add func(int64)

	mu struct {
		sync.Mutex
		deflated *deflated // nil until it is needed
		dropped  bool
	}
}

// Keep keeps the bytes of an event, which nobody changes from now on, until Drop.
// add is called, with no lock held, with what is kept of the event in addition, in
// bytes. Keep returns nil as long as no watch is compressed, and on nil.
func (e *Events) Keep(plain []byte, add func(int64)) *Event {
	if e == nil || !e.on.Load() || len(plain) == 0 {
		return nil
	}
	event := &Event{all: e, plain: plain, add: add}
	e.of.Store(unsafe.SliceData(plain), event)
	return event
}

// Drop forgets the event. Drop does nothing on nil.
func (e *Event) Drop() {
	if e == nil {
		return
	}
	e.all.of.Delete(unsafe.SliceData(e.plain))
	e.mu.Lock()
	e.mu.dropped = true
	size := e.mu.deflated.size()
	e.mu.Unlock()
	e.add(-size)
}

// find returns the event whose bytes p is, nil if there is none.
func (e *Events) find(p []byte) *Event {
	if len(p) == 0 {
		return nil
	}
	found, ok := e.of.Load(unsafe.SliceData(p))
	if !ok || !sameSlice(found.(*Event).plain, p) {
		return nil
	}
	return found.(*Event)
}

// compressed returns the event, compressed: once for all who ask.
func (e *Event) compressed() *deflated {
	e.mu.Lock()
	made := e.mu.deflated == nil
	if made {
		e.mu.deflated = deflate(e.plain)
	}
	d, counts := e.mu.deflated, made && !e.mu.dropped
	e.mu.Unlock()
	if counts {
		e.add(d.size())
	}
	return d
}
