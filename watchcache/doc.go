// SPDX-License-Identifier: Apache-2.0

// Package watchcache is the state machine of a watch cache. It holds the current objects of one resource and
// a sliding window of its recent changes. It is pure, i.e. it starts no goroutine and has no clock,
// logger, metric or context. The caller does all I/O, and passes the time in as a number.
//
// # Usage
//
// First, you must create a [State] with [New], list your source and pass the elements to
// [State.Replace]. Before that the state is empty, at resourceVersion 0. Then watch the source from
// the list's resourceVersion, on the same goroutine or another one, but never on two at a time:
//
//  1. Pass each change to [State.Apply], in the order of the source. It returns the event, and how
//     many old events left the window.
//  2. Call [State.Progress] when the source reports that it has sent all changes up to a
//     resourceVersion. The state shows a resourceVersion only when it is complete: when Progress or a
//     list reports so, or with the first change at a later one. If your source never reports
//     progress, set Whole of each [Change].
//  3. Call [State.Compacted] when the source has compacted its history.
//
// If Apply or Progress returns an error, the state is unchanged, but no longer follows the source.
// The error wraps [ErrGap] if changes are missing, and [ErrBackwards] if a resourceVersion is too
// low. Apply nothing more, list the source again, and go on with Replace.
//
// Second, dispatch the events. Read them with [State.Since] from the position where you left off, or
// from Stats.Start after a Replace, until it returns none, and send them to watchers. Then call
// [State.Dispatched]: undispatched events stay in the window (W6). Since also returns the last
// complete resourceVersion of the events so far, at which you may send a bookmark. ErrExpired means
// that Replace was called, or that the window exceeded Config.CeilingBytes: end the watchers.
//
// Third, call [State.Trim] periodically. It evicts events older than Config.History, and returns how
// many.
//
// # Reading
//
// Reads may be called from any goroutine, at any time:
//
//   - [State.Latest] returns the newest [Snapshot], i.e. all elements at the last complete
//     resourceVersion. [State.Get] returns one element, without a snapshot.
//   - [State.At] returns the snapshot at an earlier resourceVersion. Pass a snapshot to
//     [State.PinSnapshot] when you give a client a continue token for it, so that At can still
//     return it after its events have left the window.
//   - [State.PositionFor] returns the position at which to start Since for a watch from a
//     resourceVersion, and [State.Resume] the one at which to continue it. Both take an
//     [Interest]: as long as no evicted event matches it, the watch has missed nothing, even if its
//     position is below the window.
//   - [State.Hold] keeps events in the window for slow watchers, and [State.Backfill] puts events
//     from before the list in front of it.
//
// Errors of reads wrap [ErrExpired], [ErrCompacted], [ErrFuture], [ErrStopped] or [ErrTooLarge].
//
// # Values
//
// An [Element] is one object, and an [Event] one change, with the elements before and after it, at a
// [Position]. Elements, events and snapshots are immutable once published (W5), so that readers need
// no lock and share memory. A snapshot is a clone of the roots of the trees, and an earlier version
// is the newest snapshot with the window's newer events undone.
//
// Each event's position is one higher than the previous event's. Events may share a resourceVersion,
// but not a position. Replace skips one position, so that a reader at the end of the old window gets
// an error and does not read on across the gap.
//
// # Invariants
//
//   - W1: the resourceVersion never falls between two calls of Replace.
//   - W2: a snapshot at rv has exactly the effects of the events up to rv, and no further event up to
//     rv can follow.
//   - W3: a watcher receives every matching event after its start once and in order, or an error
//     that says that its position has expired; never a silent gap.
//   - W4: after a bookmark at rv no event at or below rv follows, except Late ones.
//   - W5: a published value is never written to.
//   - W6: no event leaves the window before it is dispatched, unless the window is at its ceiling;
//     Since then returns ErrExpired, and the watchers that missed the event end with a 410.
//
// With -tags invariants this package checks W1, W2, W5 and W6, and the packages that feed watchers
// check W3 and W4.
package watchcache
