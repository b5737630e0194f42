// SPDX-License-Identifier: Apache-2.0

// Package status describes a watch cache at one time: it has the types of what
// cacher.Cacher.Status returns.
package status

import (
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Cache describes a cache at one time.
type Cache struct {
	// Resource is the resource's name and group.
	Resource string
	// Ready reports whether the cache can serve: it has its state, or it sleeps
	// and a request will wake it. For a sleeping cache the fields below are empty,
	// but for the errors.
	Ready bool
	// Asleep reports whether the cache sleeps: it has not been used yet, or not
	// for the idle timeout.
	Asleep bool
	// NotReady is why the cache is not ready, if that is known.
	NotReady string
	// Since is when the cache became ready, or when it ceased to be.
	Since time.Time
	// ResourceVersion is the version that the cache has reached, OldestResourceVersion
	// the lowest that a watch can resume from.
	ResourceVersion       uint64
	OldestResourceVersion uint64
	// Objects is how many objects are cached, and ObjectBytes the memory that they
	// take, with all that they refer to. The memory is an estimate: shared memory is
	// counted for each reference.
	Objects     int
	ObjectBytes int64
	// WindowEvents is how many events are kept, and WindowBytes the memory
	// that they take beyond the objects; EncodingBytes is the memory of the
	// serializations that are kept.
	WindowEvents  int
	WindowBytes   int64
	EncodingBytes int64
	// AdaptiveIndexes are the indexes that the cache has built because LISTs needed them,
	// by name: "l:LABEL" or "f:FIELD".
	AdaptiveIndexes []string
	// WindowSince is when the window began to have all events.
	WindowSince time.Time
	// Watches counts the open watches.
	Watches Counts
	// Watchers is all open watches, the furthest behind first, or the page of them that
	// the query selects.
	Watchers []Watcher
	// Ended is watches that have ended since the cache was last awake, the latest
	// first: up to 32 that their clients ended or that reached their deadline, and
	// up to 32 others.
	Ended []Ended
	// SilenceSeconds is the time since storage's last event, report of progress or
	// answer; 0 if there was none.
	SilenceSeconds float64
	// StorageResourceVersion is the highest known version of storage since it was last
	// listed, and StorageAgeSeconds the time since storage has confirmed it. Storage
	// counts the changes of all its resources and returns its version only on request,
	// so the version may be above the cache's although the cache is not behind.
	StorageResourceVersion uint64
	StorageAgeSeconds      float64
	// Shadow is the share of requests that the cache is compared for in the shadow of the
	// shipped cacher, which answers them (server.Options.Shadow); 0: the cache serves. Totals has
	// the comparisons.
	Shadow float64
	// Totals has the cache's counts since it was last awake. Several caches of one
	// resource, with the same Metrics, count together.
	Totals metrics.Totals
	// Paused is why the cache can't follow its storage, and since when: storage
	// has a change that it can't deliver or that can't be applied. It is
	// nil while the cache follows.
	Paused *Error
	// Lost is why storage is lost, and since when: requests got no answer for the whole
	// of Config.StorageTimeout, and nothing has come from storage since. It is nil
	// while storage is there.
	Lost *Error
	// Silent reports whether storage answers requests and does not report the progress of
	// its watch as it should, so that consistent reads are left to it.
	Silent bool
	// LastError is the last thing that went wrong, nil if nothing did. Errors has
	// the last 16 different ones, the latest first.
	LastError *Error
	Errors    []Error
}

// Error is something that went wrong, and when.
type Error struct {
	// Summary is one of a few fixed sentences, about the event and the cache's response
	// to it. It names no object.
	Summary string `json:"summary"`
	// Message contains the details, without names, keys or content of objects. Only the
	// server's log may contain keys.
	Message string `json:"message,omitempty"`
	// Time is when it last happened, and Times how often it has.
	Time  time.Time `json:"time"`
	Times int       `json:"times"`
}
