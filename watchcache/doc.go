// SPDX-License-Identifier: Apache-2.0

// Package watchcache is the state machine of the watch cache: the current
// objects of one resource and a sliding window of its recent changes, as pure
// data. The package starts no goroutine and has no clock, logger, metric or
// context; the caller passes time in as numbers, and does all I/O and logging.
//
// # Values
//
// An [Element] is one object as the cache holds it. An [Event] is one change:
// the element before it and the element after it, at a [Position]. A
// [Snapshot] is an ordered view of all elements at one resourceVersion. All
// three never change once published (W5), so readers need no lock.
//
// # Writing
//
// One writer calls [State.Apply], [State.Replace], [State.Progress] and
// [State.Compacted]. A change that does not fit is refused with an error that
// names it, and leaves the state as it was; the caller then lists the source
// again and calls Replace.
//
// # Reading
//
// [State.Latest] returns the newest snapshot, a clone of the trees that readers share
// until the next change. [State.At] returns the snapshot at an earlier resourceVersion:
// the newest trees without the elements written since, merged with the elements that the
// window's newer events have replaced. [State.PinSnapshot] keeps a snapshot for clients
// that page through it. [State.Since] reads the window from a position, and
// [State.PositionFor] finds the position at which a watch from a resourceVersion
// continues.
//
// # Complete versions
//
// A source may change several keys at one resourceVersion, one event at a time. The state
// shows a resourceVersion once no more events at it can come: the source says so, by
// [State.Progress] or a list, or an event at a later one has come. Until then snapshots,
// and every method that returns a resourceVersion, stay at the last complete one; the
// events above it, the tail, can be read by position only. For a source that never says
// so, set Whole of [Change].
//
// # Positions
//
// Every event has a position, one more than its predecessor's. Two events may share a
// resourceVersion, never a position. A reader of a part of the history, an [Interest],
// goes on from below the window as long as no event of interest to it has left the
// window. Replace skips one position, so that a reader at the old end of the window gets
// an error instead of reading on over a gap.
//
// # Invariants
//
//   - W1: the resourceVersion never falls between two calls of Replace.
//   - W2: a snapshot at rv holds exactly the effects of the events up to rv,
//     and no further event up to rv can come.
//   - W3: a watcher gets every matching event after its start once and in
//     order, or an error that says that its position has expired; never a
//     silent gap.
//   - W4: after a bookmark at rv no event at or below rv follows that is not Late.
//   - W5: a published value is never written again.
//   - W6: no event leaves the window before it was dispatched, unless the
//     window has reached its ceiling; Since then returns ErrExpired, and the
//     watchers that missed the event are ended with a 410.
//
// W1, W2, W5 and W6 are checked here, W3 and W4 where watchers are fed, when
// built with -tags invariants.
package watchcache
