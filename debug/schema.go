// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"time"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// SchemaVersion is the version of the JSON response.
const SchemaVersion = 1

// Report is the JSON response.
type Report struct {
	// Schema is SchemaVersion.
	Schema int `json:"schema"`
	// Time is the server's time.
	Time time.Time `json:"time"`
	// Caches are the server's caches, by id.
	Caches []Cache `json:"caches"`
}

// Cache describes one cache.
type Cache struct {
	// ID is unique in a server: the resource, and "~" and a number for further caches of it, e.g.
	// of other versions of a custom resource.
	ID string `json:"id"`
	// Resource is "resource.group".
	Resource string `json:"resource"`
	// State is "ready", "paused" (storage can't deliver an object), "lost" (storage doesn't
	// answer), "silent" (ready, but storage reports no progress), "not ready" or "asleep" (unused,
	// without numbers).
	State string `json:"state"`
	// Since is the time at which the state began, if known.
	Since *time.Time `json:"since,omitempty"`
	// Reason is the reason for the state, if known, and for a shadow the result of the comparisons.
	Reason string `json:"reason,omitempty"`
	// Values is "shown" if names of objects are included, "hidden" if not requested, or "forbidden"
	// if the user may not list the resource.
	Values string `json:"values"`

	// Shadow is the fraction of requests compared with the shipped cacher, which then serves; see
	// Counts for the results. 0 means the cache serves.
	Shadow float64 `json:"shadow,omitempty"`

	Freshness Freshness `json:"freshness"`
	Holds     Holds     `json:"holds"`
	Window    Window    `json:"window"`
	// Counts are the counts since the cache started or last woke up. Several caches of one resource
	// share them.
	Counts   metrics.Totals `json:"counts"`
	Watchers Watchers       `json:"watchers"`
	// LastError is the latest error. Errors have messages only with values.
	LastError *status.Error `json:"lastError,omitempty"`

	// The following fields are set only if the request names the resource.

	// Ended are ended watches, latest first.
	Ended []Ended `json:"ended,omitempty"`
	// Errors are the latest distinct errors, latest first.
	Errors []status.Error `json:"errors,omitempty"`
}

// Freshness is the age of a cache's state. ResourceVersions are strings, because they may exceed
// the integers that JSON readers represent exactly.
type Freshness struct {
	// ResourceVersion is the cache's; a watch can resume from OldestResourceVersion.
	ResourceVersion       string `json:"resourceVersion,omitempty"`
	OldestResourceVersion string `json:"oldestResourceVersion,omitempty"`
	// StorageResourceVersion is the highest version reported by storage, StorageAgeSeconds the time
	// since that report. It also exceeds the cache's version after changes of other resources.
	StorageResourceVersion string   `json:"storageResourceVersion,omitempty"`
	StorageAgeSeconds      *float64 `json:"storageAgeSeconds,omitempty"`
	// SilenceSeconds is the time since storage's last event, progress report or answer, absent if
	// unknown.
	SilenceSeconds *float64 `json:"silenceSeconds,omitempty"`
}

// Holds is a cache's memory. Bytes are estimates.
type Holds struct {
	Objects       int   `json:"objects"`
	ObjectBytes   int64 `json:"objectBytes"`
	WindowBytes   int64 `json:"windowBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// AdaptiveIndexes are the indexes built on demand for LISTs, "l:LABEL" or "f:FIELD".
	AdaptiveIndexes []string `json:"adaptiveIndexes,omitempty"`
}

// Window is the recent events kept by a cache.
type Window struct {
	Events int `json:"events"`
	// Since is the time from which the window has all events, SpanSeconds the time since then.
	Since       *time.Time `json:"since,omitempty"`
	SpanSeconds float64    `json:"spanSeconds"`
}

// Watchers are the open watches of a cache.
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

// Ended is an ended watch.
type Ended struct {
	status.Ended
	Selection  Selection `json:"selection"`
	AgeSeconds float64   `json:"ageSeconds"`
}

// Selection is the selection of a watch.
type Selection struct {
	// Scope is "all", "namespace" or "object", derived from the key.
	Scope string `json:"scope"`
	// Key is the key or key prefix, only with values.
	Key string `json:"key,omitempty"`
	// Labels and Fields are the selectors. Without values, each value is "…".
	Labels string `json:"labels,omitempty"`
	Fields string `json:"fields,omitempty"`
}
