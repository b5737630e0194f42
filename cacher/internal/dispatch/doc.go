// SPDX-License-Identifier: Apache-2.0

// Package dispatch delivers the events of one state machine to its watchers.
//
// The dispatcher follows the window of events with its own cursor and feeds live watchers. It never
// waits for one longer than its time budget. New and slow watchers each have a replayer instead,
// which sends any initial events, then the window's events, until the watcher is level with the
// dispatcher. A parked watcher has a position, not a queue.
//
// Goroutines, all counted in Config.Tasks, whose owner waits for them: the dispatcher (Run, started
// by the caller), a replayer for each starting or parked watcher, and a look of the supervisor once
// a second while there are such watchers.
//
// Locks, none held while a send blocks: registry.mu guards watchers, groups, cursor and bookmark
// buckets, supervisor.mu the held part of the window, and keptEncodings.mu the list of kept
// serializations.
package dispatch
