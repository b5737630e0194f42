// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
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
	// start is the lowest position that the window has had since the last reset. The
	// window was empty then, at the position begun and the resourceVersion listed;
	// lowest is the lowest position that prepend may use.
	start, begun, lowest Position
	listed               uint64
	// dropped is the lowest resourceVersion from which the window can still
	// be continued: everything after it is in the window.
	dropped uint64
	// since is the time since when the window has all events, in the unit of
	// Event.Received.
	since int64
	// bytes is the memory that the window alone keeps, and superseded the sum, in bytes, of
	// all elements that have ever left the state.
	bytes, superseded int64
}

// minRing is the number of slots that the ring never shrinks below.
const minRing = 64

func (w *window) len() int { return int(w.next - w.first) }

func (w *window) at(p Position) *Event { return w.ring[uint64(p)&uint64(len(w.ring)-1)] }

func (w *window) slot(p Position) **Event { return &w.ring[uint64(p)&uint64(len(w.ring)-1)] }

// push appends the event at position next.
func (w *window) push(e *Event) {
	w.fit(w.len() + 1)
	w.put(w.next, e)
	w.next++
	w.superseded += e.superseded()
}

func (w *window) put(p Position, e *Event) {
	e.Position, e.bytes = p, e.retained()
	*w.slot(p) = e
	w.bytes += e.bytes
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
	w.bytes -= e.bytes
}

// endOfRevision returns the position after the last event with the oldest one's
// resourceVersion. The window has an event.
func (w *window) endOfRevision() Position {
	if rv := w.at(w.first).RV; w.len() > 1 && w.at(w.first+1).RV == rv {
		return w.after(rv)
	}
	return w.first + 1
}

// fit gives the ring room for n events, and halves it while they are no more than a quarter
// of it.
func (w *window) fit(n int) {
	size := len(w.ring)
	for size < n {
		size *= 2
	}
	for size > minRing && n <= size/4 {
		size /= 2
	}
	if size == len(w.ring) {
		return
	}
	old := *w
	w.ring = make([]*Event, size)
	for p := w.first; p < w.next; p++ {
		*w.slot(p) = old.at(p)
	}
}

// prepend puts events before the oldest one, so that the window can be continued
// from rv. Elements of these events have left the state before: superseded does not count
// them.
func (w *window) prepend(events []*Event, rv uint64) {
	w.fit(w.len() + len(events))
	for _, e := range slices.Backward(events) {
		w.first--
		w.put(w.first, e)
	}
	w.start, w.dropped = min(w.start, w.first), rv
}

// reset empties the window and skips one position, so that a reader that waits at the old
// end gets ErrExpired, and room more for prepend. A watch may continue from rv onwards.
func (w *window) reset(rv uint64, now int64, room int) {
	first := w.next + 1 + Position(room)
	*w = window{
		ring: make([]*Event, minRing), first: first, next: first, dropped: rv, since: now, superseded: w.superseded,
		start: first, begun: first, lowest: first - Position(room), listed: rv,
	}
}

// after returns the position of the first event above rv.
func (w *window) after(rv uint64) Position {
	n := sort.Search(w.len(), func(i int) bool { return w.at(w.first+Position(i)).RV > rv })
	return w.first + Position(n)
}

// check returns ErrExpired if the event at the position has left the window.
func (w *window) check(p Position) error {
	if p < w.first {
		return fmt.Errorf("position %d is older than the oldest kept, %d: %w", p, w.first, ErrExpired)
	}
	return nil
}

// Position is the number of an event in the sequence of all changes of a State.
type Position uint64

// EventType is the kind of a change: the key was added, modified or deleted.
type EventType uint8

// The types of change, as the source reports them.
const (
	Added EventType = iota + 1
	Modified
	Deleted
)

// String returns the type's name in the Kubernetes watch API.
func (t EventType) String() string {
	if t > Deleted {
		t = 0
	}
	return [...]string{"UNKNOWN", "ADDED", "MODIFIED", "DELETED"}[t]
}

// Event is one change, immutable once applied (W5).
type Event struct {
	// Position is assigned by Apply.
	Position Position
	// RV is the resourceVersion of the change.
	RV uint64
	// Type is the kind of the change.
	Type EventType
	// Late: the state has shown RV without this change already, because of
	// Change.Whole.
	Late bool
	// Element is the object after the change. For Deleted, Element is the last
	// state of the object, with the resourceVersion of the deletion.
	Element *Element
	// Previous is the object before the change; nil for Added, and only then.
	Previous *Element
	// Received is when the cache got the change, in nanoseconds since a start that the
	// caller chooses, the same for every Change and Trim.
	Received int64

	deletedView atomic.Pointer[Element]
	bytes       int64 // retained, once the event is in the window
}

// DeletedView returns the element for the DELETED event of a watcher whose selector the
// object has left: the previous state, with the resourceVersion of the change. build is
// called for the first caller, and its result shared from then on.
func (e *Event) DeletedView(build func(e *Event) *Element) *Element {
	if e.deletedView.Load() == nil {
		left := build(e)
		left.seal()
		e.deletedView.CompareAndSwap(nil, left)
	}
	return e.deletedView.Load()
}

// eventOverhead is the memory that an Event and its slot in the window take, in
// bytes.
const eventOverhead = 96

// retained is the memory that the window alone keeps for this event, in bytes: elements
// that are in the current state are not counted, and the copy that DeletedView makes is,
// if there may be one.
func (e *Event) retained() int64 {
	n := int64(eventOverhead) + e.superseded()
	if e.Type == Modified && !e.Element.SelectsAs(e.Previous) {
		n += e.Previous.bytes()
	}
	return n
}

// superseded is the memory of the elements that only the event has, in bytes. A superseded
// element is the Previous of exactly one event, a deletion's last state the Element of one.
func (e *Event) superseded() (n int64) {
	if e.Previous != nil {
		n += e.Previous.bytes()
	}
	if e.Type == Deleted {
		n += e.Element.bytes()
	}
	return n
}
