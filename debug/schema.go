// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"time"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// SchemaVersion is the version of the JSON answer.
const SchemaVersion = 1

// Report is the JSON answer.
type Report struct {
	// Schema is SchemaVersion.
	Schema int `json:"schema"`
	// Time is the time of the answer, by the server's clock.
	Time time.Time `json:"time"`
	// Caches is the server's caches, by their ids.
	Caches []Cache `json:"caches"`
}

// Cache describes one cache.
type Cache struct {
	// ID tells the caches of a server apart: the resource, and a number after a
	// "~" if there are several caches of it, one for each version of a custom
	// resource, say.
	ID string `json:"id"`
	// Resource is "resource.group".
	Resource string `json:"resource"`
	// State is "ready", "paused" (storage has something that it can't deliver),
	// "lost" (storage does not answer), "silent" (ready, but storage reports no
	// progress), "not ready" or "asleep" (no request needs the cache). A cache that is
	// asleep has no numbers.
	State string `json:"state"`
	// Since is when the cache became ready, not ready, or paused.
	Since *time.Time `json:"since,omitempty"`
	// Reason is why the cache is in no better state, if that is known, and what
	// comparisons in the shadow of the shipped cacher have found.
	Reason string `json:"reason,omitempty"`
	// Values says whether the names of objects are shown: "shown", "hidden"
	// because nobody asked, or "forbidden" because the user may not list the
	// resource.
	Values string `json:"values"`

	// Shadow is the share of requests that are compared with the shipped cacher, which
	// answers them; Counts has the comparisons. 0: the cache serves.
	Shadow float64 `json:"shadow,omitempty"`

	Freshness Freshness `json:"freshness"`
	Holds     Holds     `json:"holds"`
	Window    Window    `json:"window"`
	// Counts has the cache's counts since it was last awake. Several caches of one
	// resource count together.
	Counts   metrics.Totals `json:"counts"`
	Watchers Watchers       `json:"watchers"`
	// LastError is the last thing that went wrong.
	LastError *Problem `json:"lastError,omitempty"`

	// The fields below are there only if the request names the resource.

	// Ended is watches that have ended, the latest first.
	Ended []Ended `json:"ended,omitempty"`
	// Errors is the last different errors, the latest first.
	Errors []Problem `json:"errors,omitempty"`
}

// Freshness says how new the state of a cache is. ResourceVersions are strings,
// because they may be greater than the whole numbers that JSON readers keep.
type Freshness struct {
	// ResourceVersion is that of the cache; a watch can resume from
	// OldestResourceVersion.
	ResourceVersion       string `json:"resourceVersion,omitempty"`
	OldestResourceVersion string `json:"oldestResourceVersion,omitempty"`
	// StorageResourceVersion is the highest version that storage is known to have
	// had, and StorageAgeSeconds how long ago that was last heard. The storage's
	// version is above the cache's also when other resources have changed.
	StorageResourceVersion string   `json:"storageResourceVersion,omitempty"`
	StorageAgeSeconds      *float64 `json:"storageAgeSeconds,omitempty"`
	// SilenceSeconds is the time since storage's last event, report of progress or
	// answer. Absent if it is not known.
	SilenceSeconds *float64 `json:"silenceSeconds,omitempty"`
}

// Holds describes a cache's memory. Bytes are estimates.
type Holds struct {
	Objects       int   `json:"objects"`
	ObjectBytes   int64 `json:"objectBytes"`
	WindowBytes   int64 `json:"windowBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// AdaptiveIndexes are the indexes that the cache has built because LISTs needed
	// them: "l:LABEL" or "f:FIELD".
	AdaptiveIndexes []string `json:"adaptiveIndexes,omitempty"`
}

// Window is the recent events that a cache keeps.
type Window struct {
	Events int `json:"events"`
	// Since is when the window began to have all events, and SpanSeconds the time since.
	Since       *time.Time `json:"since,omitempty"`
	SpanSeconds float64    `json:"spanSeconds"`
}

// Watchers is the open watches of a cache.
type Watchers struct {
	Total    int `json:"total"`
	Live     int `json:"live"`
	Starting int `json:"starting"`
	Parked   int `json:"parked"`
	// WorstLagEvents and WorstLagSeconds are those of the watch that is furthest
	// behind.
	WorstLagEvents  uint64  `json:"worstLagEvents"`
	WorstLagSeconds float64 `json:"worstLagSeconds"`
	// Items is the page that was asked for.
	Items []Watcher `json:"items"`
}

// Watcher is one open watch.
type Watcher struct {
	// ID tells the watches of a cache apart until the cache sleeps.
	ID uint64 `json:"id"`
	status.Client
	Selection Selection `json:"selection"`
	// State is "live", "starting" (initial events, or those since its start, are
	// on their way) or "parked" (the client was slow, and catches up).
	State string `json:"state"`
	// LagEvents is how many events the watch has not looked at yet, and
	// LagSeconds how long ago the cache got the first of them.
	LagEvents  uint64  `json:"lagEvents"`
	LagSeconds float64 `json:"lagSeconds"`
	// Queued is how many events wait for the client, of at most Capacity.
	Queued   int `json:"queued"`
	Capacity int `json:"capacity"`
	// Delivered is how many events the client was sent, those that wait included.
	Delivered uint64 `json:"delivered"`
	// HeldBytes estimates the memory of this watch.
	HeldBytes  int64     `json:"heldBytes"`
	Started    time.Time `json:"started"`
	AgeSeconds float64   `json:"ageSeconds"`
}

// Ended is a watch that has ended.
type Ended struct {
	ID uint64 `json:"id"`
	status.Client
	Selection Selection `json:"selection"`
	// Reason is as in the metric watchcache_watchers_ended_total.
	Reason     string    `json:"reason"`
	Ended      time.Time `json:"ended"`
	AgeSeconds float64   `json:"ageSeconds"`
	Delivered  uint64    `json:"delivered"`
	LagEvents  uint64    `json:"lagEvents"`
}

// Selection is the selection of a watch.
type Selection struct {
	// Scope is "all", "namespace" or "object", as far as the key tells.
	Scope string `json:"scope"`
	// Key is the key or key prefix; only with values.
	Key string `json:"key,omitempty"`
	// Labels and Fields are the selectors. Without values, a "…" stands for each
	// value.
	Labels string `json:"labels,omitempty"`
	Fields string `json:"fields,omitempty"`
}

// Problem is something that went wrong.
type Problem struct {
	// Summary names no object. Message has the details; only with values.
	Summary string    `json:"summary"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`
	Times   int       `json:"times"`
}
