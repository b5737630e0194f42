// SPDX-License-Identifier: Apache-2.0

// Package dispatch brings the events of one state machine to its watchers.
//
// A live watcher is fed by the dispatcher, which follows the window of events with a
// cursor of its own and never waits for a watcher for longer than its time budget. A
// watcher that begins, or that is too slow, is parked: a replayer sends it any initial
// events, then the window's, until it is level with the dispatcher. A parked watcher has
// no queue, only its position.
//
// Goroutines, all counted in the caller's tasks.Group and awaited there: the
// dispatcher (Run, which the caller starts), a replay for each watcher that
// begins or is parked, and a look of the supervisor once a second while there are such
// watchers.
//
// Locks; none is held while a send blocks: registry.mu guards watchers, groups, cursor and
// bookmark buckets, supervisor.mu from where on the window is held, and keptEncodings.mu which
// serializations are kept.
package dispatch
