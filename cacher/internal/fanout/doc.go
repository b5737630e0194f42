// SPDX-License-Identifier: Apache-2.0

// Package fanout brings the events of one state machine to its watchers.
//
// The package owns the watchers: what each asks for, where it is, and its
// channel. A live watcher is fed by the dispatcher, which follows the window of
// events with a cursor of its own and never waits for a watcher for longer than
// its time budget. A watcher that begins, or that is too slow, is parked: a
// replayer goes through the window for it, after its initial events if it has
// any, until it is level with the dispatcher. Nothing but the position of a
// parked watcher is kept for it.
//
// Goroutines, all counted in the caller's tasks.Group and awaited there: the
// dispatcher (Run, which the caller starts), a replay for each watcher that
// begins and for the first ones that are parked, a poller and its helpers for
// the others, a look of the supervisor once a second while there are such
// watchers, and a copier for each watch with initial events whose reader is a
// registry's decorator.
//
// Locks, none of which is held while another is taken or while a send blocks:
// registry.mu guards watchers, groups, cursor, bookmark buckets and who is polled,
// supervisor.mu the list of watchers that catch up, encodings.mu which
// serializations are kept.
package fanout
