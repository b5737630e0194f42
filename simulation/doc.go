// SPDX-License-Identifier: Apache-2.0

// Package simulation runs a whole cache through schedules of operations that are
// made from a seed, and compares all that its clients see with a naive model.
//
// A schedule is a list of operations: what the storage of the cache does and how
// it fails, what watchers and readers ask for, time that passes. The driver runs
// it in a bubble of testing/synctest, with virtual time, against a real
// cacher.Cacher over internal/memstore. The package has no part of the product of
// its own: it uses the public surface only, but for one thing. The dispatcher sends
// bursts to watchers in rounds only when there are hundreds of watchers, which no
// schedule has; three of four seeds have rounds for all (internal/rounds).
//
// The way of a schedule: generate.go makes operations (operation.go), drive.go and
// execute.go run them one after the other, writes.go those that write through the
// cache, sharing.go those of the stores that share it; clients.go and storage.go are what they act on,
// history.go is the list of everything that was written, and watchrule.go and
// readrule.go say what a client may see of it. trace.go notes every operation and
// every observation, one line each; coverage.go counts in which state of the cache
// each kind of operation (kinds.go) was tried; shrink.go drops the operations that a failure does not
// need.
//
// # What is checked
//
//   - A watcher gets every event of its selection after its start, once and in
//     order, with the type that its selection sees, resourceVersion and content; or
//     the watch ends, for a reason that the schedule has given.
//   - A watch with initial events brings the state of one version that is as new
//     as was asked for, and the mark at its end names that version.
//   - A bookmark is neither below what was sent nor above what was. While nothing is
//     wrong, bookmarks come at their interval, whatever the time of day is set to.
//   - A list that is encoded from kept bytes has the bytes of the server's own encoder.
//   - A read shows one version, whole, which is as new as was asked for. A read at
//     resourceVersion 0 never goes back. Pages show one version.
//   - A request ends in bounded virtual time, with an answer unless the schedule
//     gives a reason for an error; at once when its client leaves.
//   - A write through the cache is made of the latest state, whatever the cache has
//     suggested to its storage.
//   - The serialization that watchers of an event share is that of the event's object.
//   - A storage that gave no reason is not listed again, and is watched once.
//   - When all faults are over, the cache recovers by itself and equals its storage.
//   - A cache that several stores share is theirs until the last one leaves.
//   - After Stop, watches end, requests fail at once, and no goroutine is left.
//
// # Two kinds of schedules
//
// In a deterministic schedule everything comes to rest between two operations. In a
// racing schedule several operations come at once, so that the cache's goroutines race
// each other; the model allows every order.
//
// make verify runs deterministic schedules, and make soak both kinds, on a Go runtime in
// which the seed decides which goroutine runs next, which case of a select is taken, and
// the order of maps and of timers (hack/seeded). The same seed then gives the same
// trace, byte for byte, in every process: TestSameSeedSameTrace holds the package to
// that within one. Memory is collected between
// schedules only, for a collection changes the order in which goroutines run. Without
// that runtime one deterministic seed in some 700 has more than one trace. Racing
// schedules run with the race detector, too, which picks the next goroutine at random;
// with neither, their goroutines run on all processors.
//
// # Two servers
//
// TestClientsMoveBetweenServers runs two caches over one storage. Clients of seven kinds
// list, watch, are slow or leave, and resume on either cache with the resourceVersions
// that they have, through bursts beyond the window, transactions, compactions, restarts,
// sleep and every fault of the storage. Each event is judged, and so is the end state.
//
// # What is not promised, and not simulated
//
// Between the moment when the storage goes back to an older version, or skips
// events, and the list with which the cache finds out, its clients may see the
// history that is gone: they are only held to resourceVersions that do not fall.
//
// Racing schedules set no clock and encode no list.
package simulation
