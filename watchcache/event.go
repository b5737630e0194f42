// SPDX-License-Identifier: Apache-2.0

package watchcache

import "sync/atomic"

// Position is the number of an event in the sequence of all changes that a
// State has seen. Positions grow by one with every event; resourceVersions may
// repeat and skip.
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

// Event is one change, immutable once applied (W5).
type Event struct {
	// Position is assigned by Apply.
	Position Position
	// RV is the resourceVersion of the change.
	RV uint64
	// Type is the kind of the change.
	Type EventType
	// Element is the object after the change. For Deleted, Element is the last
	// state of the object, with the resourceVersion of the deletion.
	Element *Element
	// Previous is the object before the change; nil for Added, and only then.
	Previous *Element
	// Received is when the cache got the change, in nanoseconds since a start that
	// the caller chooses, the same for every Change, Trim and Carry. The window
	// keeps an event for Config.History from this time on.
	Received int64

	left atomic.Pointer[Element]
	// copies counts the bytes of the copies that Left has made for the events of a
	// window; nil for an event in no window.
	copies *atomic.Int64
}

// Left returns the element for the DELETED event of a watcher whose selector no
// longer selects the object: the previous state, with the resourceVersion of
// the change. Left calls build for the first caller, shares the result from
// then on, and counts it in the bytes of the window. For an event that left the
// window before any call, Left calls build for each caller alone.
func (e *Event) Left(build func(e *Event) *Element) *Element {
	shared := e.left.Load()
	if shared != nil && shared != neverLeft {
		return shared
	}
	left := build(e)
	left.seal()
	switch {
	case e.left.CompareAndSwap(nil, left):
		if e.copies != nil {
			e.copies.Add(left.bytes())
		}
	case e.left.Load() != neverLeft:
		return e.left.Load()
	}
	return left
}

// neverLeft stands, in an event that was evicted, for the copy that Left would
// have made: copies of such an event do not count in the window any more.
var neverLeft = new(Element)

// evicted takes the copy that Left has made out of the window's bytes. The
// caller of Left may not have added them yet.
func (e *Event) evicted() {
	if !e.left.CompareAndSwap(nil, neverLeft) {
		e.copies.Add(-e.left.Load().bytes())
	}
}

// eventOverhead is the memory that an Event and its slot in the window take, in
// bytes.
const eventOverhead = 96

// retained is the memory that the window alone keeps for this event, in bytes:
// elements that are in the current state are not counted. A superseded element
// is the Previous of exactly one event, a deletion's last state the Element of
// one.
func (e *Event) retained() int64 {
	n := int64(eventOverhead)
	if e.Previous != nil {
		n += e.Previous.bytes()
	}
	if e.Type == Deleted {
		n += e.Element.bytes()
	}
	return n
}
