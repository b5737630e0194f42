// SPDX-License-Identifier: Apache-2.0

package watchcache

import "sync/atomic"

// Position is an event's place in the sequence of all changes that a State has
// seen. Positions grow by one with every event; resourceVersions may repeat
// and skip.
type Position uint64

// EventType says what a change did to its key.
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

// Event is one change. It is immutable once applied (W5).
type Event struct {
	// Position is assigned by Apply.
	Position Position
	// RV is the resourceVersion of the change.
	RV uint64
	// Type is what happened.
	Type EventType
	// Element is the state after the change. For Deleted it is the last state
	// of the object, carrying the resourceVersion of the deletion.
	Element *Element
	// Previous is the state before the change; nil exactly for Added.
	Previous *Element
	// Recorded is when the storage decoded the change and Received when the
	// cache got it, both in nanoseconds since the Unix epoch. Received decides
	// how long the window keeps the event.
	Recorded, Received int64

	left atomic.Pointer[Element]
}

// Left returns what a watcher is told whose selector the change has left: the
// previous state, carrying the resourceVersion of the change. It is made by
// make when first asked for and shared from then on.
func (e *Event) Left(make func(e *Event) *Element) *Element {
	if left := e.left.Load(); left != nil {
		return left
	}
	left := make(e)
	left.seal()
	if !e.left.CompareAndSwap(nil, left) {
		return e.left.Load()
	}
	return left
}

// eventOverhead is what an Event and its slot in the window take, in bytes.
const eventOverhead = 96

// retained is what the window alone keeps in memory for this event: elements
// that are in the current state are not counted. A superseded element is the
// Previous of exactly one event, a deletion's last state the Element of one.
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
