// SPDX-License-Identifier: Apache-2.0

// Package cacher is a watch cache for API servers built on k8s.io/apiserver: a storage.Interface
// that wraps another one, keeps the state of one resource and a sliding window of its changes, and
// serves GET, LIST and WATCH from memory. Writes go to the wrapped storage.
//
// # Use
//
// In an API server, [Decorator] replaces genericregistry.StorageWithCacher; package server switches
// a whole server over. Elsewhere, [New] wraps any storage.Interface:
//
//	c, err := cacher.New(cacher.Config{Storage: s, ...})
//	if err != nil {
//		return err // names every invalid field
//	}
//	defer c.Stop()
//	if err := c.Wait(ctx); err != nil {
//		return err
//	}
//
// # The path of an event
//
// internal/source watches the wrapped storage for a client-go Reflector. feed.go applies each event
// to the state machine of package watchcache. internal/dispatch reads the window at its own cursor,
// looks up watchers in internal/match, and sends without blocking. It parks a watcher whose channel
// is full; the watcher then catches up from its position. There is no queue between feed and
// dispatcher.
//
// # The path of a read
//
// decide.go is a pure function of the read's options, the condition and the versions of the state.
// For a consistent read, internal/freshness requests storage's version and waits for the cache to
// reach it. get.go and list.go read an immutable snapshot without a lock.
//
// # Glossary
//
// These words have one meaning in our comments and pages.
//
// The data:
//
//   - storage: the wrapped storage.Interface, e.g. etcd.
//   - source: the part of a cache that lists and watches storage.
//   - version, resourceVersion, RV: orders all changes in storage. A revision is one
//     transaction of storage; its events share its version.
//   - complete: a version that gets no more events. Reads, bookmarks and resumed
//     watches see only these. Later events are the tail.
//   - element: one cached object with its key, version, labels and fields. Immutable.
//   - event: one change, with the elements before and after it.
//   - position: where an event is in the order in which the cache applied them. Events may
//     share a version, never a position.
//   - window: the latest events. Watches resume from it, and earlier versions are
//     rebuilt from it. An event leaves it by eviction.
//   - floor: the last evicted event of a namespace or an index value. A watch of that value
//     misses nothing if it begins there or later.
//   - snapshot: the immutable state at one version.
//   - state: the elements and the window (watchcache.State). The initial state of a watch
//     is the snapshot it begins with, sent as initial events.
//   - backfill: events older than the cache's first list, fetched from storage and put
//     in front of the window. Each storage watch fetches one piece.
//   - gap: events that the cache missed.
//   - relist: a full list after the first one. It replaces the state and ends all watches.
//
// What the cache can vouch for:
//
//   - condition: phase, integrity, contact and silence, in one immutable value.
//   - paused: storage answers, but can't deliver the next change.
//   - integrity: verified, suspected (a comparison or a list clears it) or corrupt (only a
//     list does). The last two are unverified.
//   - contact: answering, unresponsive (a request failed) or lost (unresponsive for longer
//     than StorageTimeout).
//   - progress: storage's report that its watch delivered all events up to a version. A
//     silent storage answers requests but reports none.
//   - fresh: at or above the version that a read needs. Otherwise it is stale, and we don't
//     serve it.
//
// Watches:
//
//   - client: the program that sent a request. Watcher: our end of its watch.
//   - query: the key or key prefix and the selectors of a watch or a list.
//   - group: the watchers with one query. We evaluate an event once per group.
//   - dispatcher: the goroutine that sends events to live watchers.
//   - live: fed by the dispatcher as events arrive.
//   - parked: slow, and fed by a goroutine of its own that replays events until it catches
//     up. Starting: the same before a watcher is live, after its initial events.
//   - bookmark: an event with a version up to which the client has everything, and no object.
//
// Reads and bytes:
//
//   - consistent read: one without a resourceVersion. It waits until the cache reaches the
//     version that storage had after the read arrived.
//   - fallback: a read that timed out waiting for a fresh cache. Storage answers it, or we
//     refuse it.
//   - kept bytes: serializations of objects that later lists and watches reuse. A chunk is
//     that of consecutive objects.
//   - limit: a maximum size in bytes. To share: several registries share a cache, several
//     watches an encoding. A part of requests is a fraction, not a share.
//   - to take turns: to run one at a time among many, e.g. evaluations of large queries.
//
// # Objects are shared
//
// List items and the results of Get are shallow copies: you may replace their fields, but not write
// to their maps and slices. Events carry a runtime.CacheableObject, whose GetObject returns a
// private copy.
package cacher
