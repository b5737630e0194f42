// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"sort"
	"sync/atomic"
)

// window is the sliding window of recent events: a ring that grows and shrinks
// by halves and doubles. The lock of its State guards it.
type window struct {
	ring []*Event // length is a power of two; slots outside [first, next) are nil
	// first is the position of the oldest kept event, next that of the event
	// to come.
	first, next Position
	// start is the position that the window began with.
	start Position
	// dropped is the lowest resourceVersion from which the window can still
	// be continued: everything after it is in the window.
	dropped uint64
	// since is the time from which on the window has all events, as that of
	// Event.Received.
	since int64
	// bytes is the memory that the window alone keeps, without copies, which
	// counts the copies that Event.Left has made.
	bytes  int64
	copies *atomic.Int64
	// superseded is the sum of all that was ever added to bytes.
	superseded int64
}

func newWindow(first Position, rv uint64) window {
	return window{ring: make([]*Event, minRing), first: first, next: first, dropped: rv, copies: new(atomic.Int64)}
}

// kept is the memory that the window alone keeps, in bytes.
func (w *window) kept() int64 { return w.bytes + w.copies.Load() }

// minRing is the number of slots that the ring never shrinks below.
const minRing = 64

func (w *window) len() int { return int(w.next - w.first) }

func (w *window) at(p Position) *Event { return w.ring[uint64(p)&uint64(len(w.ring)-1)] }

func (w *window) slot(p Position) **Event { return &w.ring[uint64(p)&uint64(len(w.ring)-1)] }

// push appends the event at position next, and reports whether the ring grew.
func (w *window) push(e *Event) bool {
	grew := false
	if w.len() == len(w.ring) {
		w.resize(max(minRing, 2*len(w.ring)))
		grew = true
	}
	e.Position, e.copies = w.next, w.copies
	*w.slot(w.next) = e
	w.next++
	w.bytes += e.retained()
	w.superseded += e.retained()
	return grew
}

// evict drops the oldest event. The slot is cleared, so that the ring does not
// keep an evicted event in memory.
func (w *window) evict() {
	slot := w.slot(w.first)
	e := *slot
	*slot = nil
	w.first++
	w.dropped = max(w.dropped, e.RV)
	w.since = max(w.since, e.Received)
	w.bytes -= e.retained()
	e.evicted()
}

// shrink halves the ring while it is no more than a quarter full, and reports
// whether it did.
func (w *window) shrink() bool {
	size := len(w.ring)
	for size > minRing && w.len() <= size/4 {
		size /= 2
	}
	if size == len(w.ring) {
		return false
	}
	w.resize(size)
	return true
}

func (w *window) resize(size int) {
	old := *w
	w.ring = make([]*Event, size)
	for p := w.first; p < w.next; p++ {
		*w.slot(p) = old.at(p)
	}
}

// prepend puts events before the oldest one, so that the window can be continued
// from rv, and reports whether the ring grew. The window still has the position that
// it began with, and room before it. Elements of these events have left the state
// before: superseded does not count them.
func (w *window) prepend(events []*Event, rv uint64) bool {
	size := len(w.ring)
	for size < w.len()+len(events) {
		size *= 2
	}
	grew := size > len(w.ring)
	if grew {
		w.resize(size)
	}
	for _, e := range slices.Backward(events) {
		w.first--
		e.Position, e.copies = w.first, w.copies
		*w.slot(w.first) = e
		w.bytes += e.retained()
	}
	w.start, w.dropped = w.first, rv
	return grew
}

// reset empties the window and skips one position, so that a reader that waits
// at the old end gets ErrExpired, and room more, which prepend may use. A watch may
// continue from rv onwards, which was at the time now.
func (w *window) reset(rv uint64, now int64, room int) {
	superseded := w.superseded
	*w = newWindow(w.next+1+Position(room), rv)
	w.start, w.superseded, w.since = w.first, superseded, now
}

// after returns the position of the first event above rv.
func (w *window) after(rv uint64) Position {
	n := sort.Search(w.len(), func(i int) bool { return w.at(w.first+Position(i)).RV > rv })
	return w.first + Position(n)
}

// copyFrom copies events from position p on into buf and returns how many.
func (w *window) copyFrom(p Position, buf []*Event) int {
	n := min(len(buf), int(w.next-p))
	for i := range n {
		buf[i] = w.at(p + Position(i))
	}
	return n
}
