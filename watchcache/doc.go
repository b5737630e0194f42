// SPDX-License-Identifier: Apache-2.0

// Package watchcache is the state machine of the watch cache: the current
// objects of one resource and a sliding window of its recent changes, as pure
// data. It starts no goroutine and knows no clock, logger, metric or context;
// the caller brings time as numbers and does all the talking.
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
// [State.Compacted]. What does not fit is refused with an error that names it,
// and leaves the state as it was; the caller then resynchronizes by listing
// the source anew and calling Replace.
//
// # Reading
//
// [State.Latest] gives the newest snapshot. It is cloned when first asked for
// after a change and shared until the next change, so that a burst of writes
// costs one clone and not one for each. [State.At] gives the snapshot at an
// earlier resourceVersion by undoing the window's newer events. [State.Since]
// reads the window from a position, [State.PositionAfter] finds the position
// at which a watch from a resourceVersion continues.
//
// # Positions
//
// Every event has a position, one more than its predecessor's. Two events may
// share a resourceVersion (a transaction over several keys), never a position.
// Replace skips one position, so that whoever waits at the old end of the
// window finds its position gone instead of reading on over a gap.
//
// # Invariants
//
//   - W1: the resourceVersion never falls between two calls of Replace.
//   - W2: a snapshot at rv holds exactly the effects of the events up to rv.
//   - W3: a watcher gets every matching event after its start once and in
//     order, or is told that it is too late; never a silent gap.
//   - W4: after a bookmark at rv no event at or below rv follows.
//   - W5: a published value is never written again.
//   - W6: no event leaves the window before it was dispatched.
//
// W1, W2, W5 and W6 are checked here, W3 and W4 where watchers are fed, when
// built with -tags invariants.
package watchcache
