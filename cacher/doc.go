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
//		return err // names every field that does not fit
//	}
//	defer c.Stop()
//	if err := c.Wait(ctx); err != nil {
//		return err
//	}
//
// # The way of an event
//
// source.go watches the wrapped storage for a client-go Reflector and resumes
// broken watches; feed.go computes key and attributes once and applies the
// event to the state machine of package watchcache; dispatch.go follows the
// window with a cursor of its own, asks registry.go and probe.go for the
// watchers that may care, and sends without blocking; a watcher whose channel
// is full is parked and catches up from its position (catchup.go). No queue
// stands between the feed and the dispatcher: a slow watcher slows down nobody.
//
// # The way of a read
//
// decide.go decides from the options and the cache's state alone; versions.go
// asks storage for the version that a consistent read needs, once for all who
// ask at the same time; freshness.go waits for the cache to reach it; get.go
// and list.go read an immutable snapshot, with nothing locked.
//
// # Sleep
//
// A server with thousands of caches need not run all of them: with
// Config.LazyStart the first request starts a cache, and with
// Config.IdleTimeout it ends what runs, and frees the state, after a time
// without requests and open watches. sleep.go has the rules; the next request
// wakes the cache, and waits for it.
//
// # What a caller may do with objects
//
// Objects in lists and events are shared. A list's items and a Get's result
// are shallow copies: replacing their fields is fine, writing into their maps
// and slices is not. Events carry a runtime.CacheableObject, whose GetObject
// returns a private copy.
package cacher
