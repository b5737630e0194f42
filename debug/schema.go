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
	// LastError is the latest error. Errors have messages only with values.
	LastError *status.Error `json:"lastError,omitempty"`

	// The fields below are there only if the request names the resource.

	// Ended is watches that have ended, the latest first.
	Ended []Ended `json:"ended,omitempty"`
	// Errors is the last different errors, the latest first.
	Errors []status.Error `json:"errors,omitempty"`
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
	Total int `json:"total"`
	status.Counts
	// Items is the requested page.
	Items []Watcher `json:"items"`
}

// Watcher is one open watch.
type Watcher struct {
	status.Watcher
	Selection  Selection `json:"selection"`
	AgeSeconds float64   `json:"ageSeconds"`
}

// Ended is a watch that has ended.
type Ended struct {
	status.Ended
	Selection  Selection `json:"selection"`
	AgeSeconds float64   `json:"ageSeconds"`
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
