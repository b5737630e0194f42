// SPDX-License-Identifier: Apache-2.0

// Package status has the types of a cache's status, as returned by cacher.Cacher.Status.
package status

import (
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Cache describes a cache at one time.
type Cache struct {
	// Resource is the resource's name and group.
	Resource string
	// Ready reports whether the cache can serve, i.e. it has its state, or is asleep and a request
	// will wake it. For a sleeping cache, the fields below are zero, except for the errors.
	Ready bool
	// Asleep reports whether the cache has been unused since its creation or for the idle timeout.
	Asleep bool
	// NotReady is the reason why the cache is not ready, if known.
	NotReady string
	// Since is when the cache last became ready or unready.
	Since time.Time
	// ResourceVersion is the version of the cache's state, OldestResourceVersion the lowest one
	// from which a watch can resume.
	ResourceVersion       uint64
	OldestResourceVersion uint64
	// Objects is the number of cached objects, and ObjectBytes an estimate of their memory, which
	// counts shared memory for each reference.
	Objects     int
	ObjectBytes int64
	// WindowEvents is the number of events in the window, and WindowBytes their memory beyond the
	// objects. EncodingBytes is the memory of cached serializations.
	WindowEvents  int
	WindowBytes   int64
	EncodingBytes int64
	// AdaptiveIndexes are the indexes that the cache built for LISTs, by name: "l:LABEL" or
	// "f:FIELD".
	AdaptiveIndexes []string
	// WindowSince is the time since which the window has all events.
	WindowSince time.Time
	// Watches counts the open watches.
	Watches Counts
	// Watchers is the open watches, the furthest behind first, or the page of them selected by a
	// Query.
	Watchers []Watcher
	// Ended is watches that ended since the cache was last awake, latest first: up to 32 ended by
	// their clients or their deadline, and up to 32 others.
	Ended []Ended
	// SilenceSeconds is the time since storage's last event, progress report or answer; 0 without
	// any.
	SilenceSeconds float64
	// StorageResourceVersion is the highest version reported by storage since the last list, and
	// StorageAgeSeconds the age of the report. It counts the changes of all resources, so it may be
	// above the cache's although the cache is not behind.
	StorageResourceVersion uint64
	StorageAgeSeconds      float64
	// Shadow is the fraction of requests compared against the shipped cacher, which then serves
	// (server.Options.Shadow), or 0. Totals has the comparisons.
	Shadow float64
	// Totals has the cache's counts since it was last awake. Caches of one resource with the same
	// Metrics count together.
	Totals metrics.Totals
	// Paused says why and since when the cache can't follow storage, e.g. because a change can't be
	// delivered. Nil while the cache follows.
	Paused *Error
	// Lost says why and since when storage is lost, i.e. has answered no request for
	// Config.StorageTimeout and sent nothing. Nil while storage is reachable.
	Lost *Error
	// Silent reports whether storage answers requests without reporting progress. The cache then
	// leaves consistent reads to it.
	Silent bool
	// LastError is the last error, or nil. Errors has the last 16 different ones, latest first.
	LastError *Error
	Errors    []Error
}

// Error is one kind of error.
type Error struct {
	// Summary is one of a few fixed sentences, about the error and the cache's response. It names
	// no object.
	Summary string `json:"summary"`
	// Message contains details, without names, keys or content of objects. Only the server's log
	// may contain keys.
	Message string `json:"message,omitempty"`
	// Time is the last occurrence, and Times the number of occurrences.
	Time  time.Time `json:"time"`
	Times int       `json:"times"`
}
