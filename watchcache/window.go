// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
)

// window is the sliding window of recent events, in a ring that grows and shrinks by factors of two.
// Guarded by the lock of State.
type window struct {
	ring []*Event // length is a power of two; slots outside [first, next) are nil
	// first is the position of the oldest event, next that of the next event.
	first, next Position
	// The last reset was at position resetPos and resourceVersion resetRV. start is the lowest
	// position since then, and minPos the lowest one that prepend may use. Invariant:
	// minPos <= start <= resetPos, and start <= first <= next.
	start, resetPos, minPos Position
	resetRV                 uint64
	// evictedRV is the lowest resourceVersion from which the window can be continued, i.e. it contains
	// all later events.
	evictedRV uint64
	// evictedAt is the time since which the window has all events, in the unit of Event.Received.
	evictedAt int64
	// bytes is the memory kept by the window alone, and superseded the total size of all elements
	// that have left the state since its creation, both in bytes.
	bytes, superseded int64
}

// minRing is the minimum number of slots.
const minRing = 64

func (w *window) size() int { return int(w.next - w.first) }

func (w *window) slot(p Position) **Event { return &w.ring[uint64(p)&uint64(len(w.ring)-1)] }

func (w *window) get(p Position) *Event { return *w.slot(p) }

// push appends an event at position next.
func (w *window) push(e *Event) {
	w.fit(w.size() + 1)
	w.put(w.next, e)
	w.next++
	w.superseded += e.superseded()
}

func (w *window) put(p Position, e *Event) {
	e.Position = p
	e.bytes = e.retained()
	*w.slot(p) = e
	w.bytes += e.bytes
}

// evict drops the oldest event, and clears its slot so that the ring does not keep it in memory.
func (w *window) evict() {
	slot := w.slot(w.first)
	e := *slot
	*slot = nil
	w.first++
	w.evictedRV = max(w.evictedRV, e.RV)
	w.evictedAt = max(w.evictedAt, e.Received)
	w.bytes -= e.bytes
}

// endOfRevision returns the position after the last event at the oldest event's resourceVersion.
// The window must not be empty.
func (w *window) endOfRevision() Position {
	rv := w.get(w.first).RV
	if w.size() == 1 || w.get(w.first+1).RV > rv { // the usual case
		return w.first + 1
	}
	return w.after(rv)
}

// fit grows the ring for n events, and shrinks it while n is at most a quarter of its slots.
func (w *window) fit(n int) {
	slots := len(w.ring)
	for slots < n {
		slots *= 2
	}
	for slots > minRing && n <= slots/4 {
		slots /= 2
	}
	if slots == len(w.ring) {
		return
	}
	old := *w
	w.ring = make([]*Event, slots)
	for p := w.first; p < w.next; p++ {
		*w.slot(p) = old.get(p)
	}
}

// prepend puts events before the oldest one; the window can then be continued from rv. It does not
// count their elements in superseded, because they were counted when they left the state.
func (w *window) prepend(events []*Event, rv uint64) {
	w.fit(w.size() + len(events))
	for _, e := range slices.Backward(events) {
		w.first--
		w.put(w.first, e)
	}
	w.start = min(w.start, w.first)
	w.evictedRV = rv
}

// reset empties the window at rv. It skips one position, so that a reader at the end of the old
// window gets ErrExpired, and room more for prepend.
func (w *window) reset(rv uint64, now int64, room int) {
	minPos := w.next + 1
	first := minPos + Position(room)
	*w = window{
		ring: make([]*Event, minRing), first: first, next: first, evictedRV: rv, evictedAt: now, superseded: w.superseded,
		start: first, resetPos: first, minPos: minPos, resetRV: rv,
	}
}

// after returns the position of the first event above rv.
func (w *window) after(rv uint64) Position {
	n := sort.Search(w.size(), func(i int) bool { return w.get(w.first+Position(i)).RV > rv })
	return w.first + Position(n)
}

// check returns ErrExpired if the event at position p has left the window.
func (w *window) check(p Position) error {
	if p < w.first {
		return fmt.Errorf("position %d is older than the oldest kept, %d: %w", p, w.first, ErrExpired)
	}
	return nil
}

// Position is the number of an event in the sequence of all changes of a State.
type Position uint64

// EventType is the type of a change.
type EventType uint8

// The types of changes, as reported by the source.
const (
	Added EventType = iota + 1
	Modified
	Deleted
)

// String returns the type's name in the Kubernetes watch API.
func (t EventType) String() string {
	switch t {
	case Added:
		return "ADDED"
	case Modified:
		return "MODIFIED"
	case Deleted:
		return "DELETED"
	}
	return "UNKNOWN"
}

// Event is one change. It is immutable once applied (W5).
type Event struct {
	// Position is assigned by Apply.
	Position Position
	// RV is the resourceVersion of the change.
	RV uint64
	// Type is the type of the change.
	Type EventType
	// Late reports whether the state showed RV before this change, because of Change.Whole.
	Late bool
	// Element is the object after the change. For Deleted, it is the last state of the object with
	// the resourceVersion of the deletion.
	Element *Element
	// Previous is the object before the change. It is nil if and only if Type is Added.
	Previous *Element
	// Received is the time at which the cache received the change, in nanoseconds since an origin
	// chosen by the caller, the same for all Changes and calls of Trim.
	Received int64

	deletedView atomic.Pointer[Element]
	bytes       int64 // see retained; set by put
}

// DeletedView returns the element for the DELETED event of watchers whose selector no longer
// selects the object, i.e. the previous state with the resourceVersion of the change. All callers share
// the result of one call of build.
func (e *Event) DeletedView(build func(e *Event) *Element) *Element {
	if e.deletedView.Load() == nil {
		view := build(e)
		view.seal()
		e.deletedView.CompareAndSwap(nil, view)
	}
	return e.deletedView.Load()
}

// eventOverhead is the memory of an Event and its slot in the window, in bytes.
const eventOverhead = 96

// retained returns the memory kept by the window for this event, in bytes. It excludes elements in
// the current state, and includes the copy built by DeletedView if there may be one.
func (e *Event) retained() int64 {
	n := int64(eventOverhead) + e.superseded()
	if e.Type == Modified && !e.Element.SelectsAs(e.Previous) {
		n += e.Previous.bytes()
	}
	return n
}

// superseded returns the memory of the elements that left the state by this event, in bytes. A
// replaced element is the Previous of one event, and the last state of a deleted object the Element
// of one.
func (e *Event) superseded() (n int64) {
	if e.Previous != nil {
		n += e.Previous.bytes()
	}
	if e.Type == Deleted {
		n += e.Element.bytes()
	}
	return n
}
