// SPDX-License-Identifier: Apache-2.0

// Package cacher is a watch cache for API servers built on k8s.io/apiserver: a
// storage.Interface that wraps another one, keeps the state of one resource
// and a sliding window of its changes, and serves GET, LIST and WATCH from
// memory. Writes go to the wrapped storage.
//
// # Use
//
// In an API server, [Decorator] takes the place of
// genericregistry.StorageWithCacher; package server switches a whole server
// over. Elsewhere, [New] wraps any storage.Interface:
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
// internal/source watches the wrapped storage for a client-go Reflector; feed.go applies
// each event to the state machine of package watchcache; internal/dispatch follows the
// window with a cursor of its own, asks internal/match for the watchers that may care,
// and sends without blocking. A watcher whose channel is full is parked and catches up
// from its position: no queue stands between the feed and the dispatcher.
//
// # The path of a read
//
// decide.go decides from the options and the cache's state alone; internal/freshness
// asks storage for the version that a consistent read needs, and waits for the cache to
// reach it; get.go and list.go read an immutable snapshot, with nothing locked.
//
// # Glossary
//
// The comments and documents of this module use these words in one meaning.
//
//   - complete: a resourceVersion without further events to come. Reads,
//     bookmarks and resumed watches see complete versions only; a revision of
//     storage may carry several events, which have its resourceVersion in common.
//   - floor: for a namespace, or a value of an index, the last event that has left
//     the window. A watch of that value misses nothing if it begins there or later.
//   - group: the watchers with one query. An event is evaluated once for a group.
//   - live: a watcher that receives events from the dispatcher as they come.
//   - parked: a watcher that is not live, because it has just begun or because
//     its client is slow. Events are replayed from its position until it has caught
//     up with the dispatcher, by a goroutine of its own. Status and metrics call one that
//     has not been live yet starting.
//   - position: the place of an event in the order in which the cache has applied
//     events. Each event has a position of its own.
//   - progress: storage's statement that its watch has brought all events up to a
//     resourceVersion.
//   - query: the key or key prefix and the selectors of a watch or a list.
//   - snapshot: the immutable state at one resourceVersion. Reads and the initial
//     events of watches are served from one.
//   - window: the latest events. Watches resume, and earlier versions are rebuilt,
//     from it.
//
// # Objects are shared
//
// A list's items and a Get's result are shallow copies: replacing their fields
// is fine, writing into their maps and slices is not. Events carry a
// runtime.CacheableObject, whose GetObject returns a private copy.
package cacher
