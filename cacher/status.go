// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"slices"
	"time"
)

// Status describes a cache at one time.
type Status struct {
	// Resource is the resource's name and group.
	Resource string `json:"resource"`
	// Ready tells whether the cache can serve: it has its state, or it sleeps
	// and a request will wake it. A sleeping cache has nothing of what follows.
	Ready bool `json:"ready"`
	// Asleep tells whether the cache sleeps: it has not been used yet, or not
	// for the idle timeout.
	Asleep bool `json:"asleep,omitempty"`
	// ResourceVersion is what the cache has reached, OldestResourceVersion
	// what a watch can still resume from.
	ResourceVersion       uint64 `json:"resourceVersion"`
	OldestResourceVersion uint64 `json:"oldestResourceVersion"`
	// Objects is how many objects are cached, and ObjectBytes the memory they
	// take, estimated.
	Objects     int   `json:"objects"`
	ObjectBytes int64 `json:"objectBytes"`
	// WindowEvents is how many events are kept, and WindowBytes the memory
	// that they take beyond the objects; EncodingBytes is what is kept of
	// serializations.
	WindowEvents  int   `json:"windowEvents"`
	WindowBytes   int64 `json:"windowBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// Watchers are all open watches, those that lag most first.
	Watchers []WatcherStatus `json:"watchers"`
	// LastError is the last thing that went wrong, nil if nothing did.
	LastError *LastError `json:"lastError,omitempty"`
}

// WatcherStatus describes one watch.
type WatcherStatus struct {
	// Key is the key or key prefix that is watched, LabelSelector and
	// FieldSelector what is selected there.
	Key           string `json:"key"`
	LabelSelector string `json:"labelSelector,omitempty"`
	FieldSelector string `json:"fieldSelector,omitempty"`
	// Parked: the watcher is not fed as events come, but catches up from its
	// position: it has just begun, or its client is slow.
	Parked bool `json:"parked"`
	// Lag is how many events the watcher has not looked at yet, of those that
	// were dispatched. A live watcher has none.
	Lag uint64 `json:"lag"`
	// Queued is how many events the client has not taken yet.
	Queued int `json:"queued"`
	// Started is when the watch began.
	Started time.Time `json:"started"`
}

// LastError is something that went wrong, and when.
type LastError struct {
	Message string    `json:"message"`
	Time    time.Time `json:"time"`
}

// Status describes the cache as it is now. It takes locks only for as long as
// copying takes.
func (c *Cacher) Status() Status {
	if e := c.sleep.engine.Load(); e != nil {
		return e.status()
	}
	return Status{
		Resource: c.config.GroupResource.String(),
		Ready:    c.Ready(), Asleep: true,
		Watchers:  []WatcherStatus{},
		LastError: c.lastError.Load(),
	}
}

func (c *engine) status() Status {
	stats := c.state.Stats()
	return Status{
		Resource:              c.config.GroupResource.String(),
		Ready:                 c.readiness.ready(),
		ResourceVersion:       stats.RV,
		OldestResourceVersion: stats.OldestRV,
		Objects:               stats.Objects,
		ObjectBytes:           stats.ObjectBytes,
		WindowEvents:          stats.WindowEvents,
		WindowBytes:           stats.WindowBytes,
		EncodingBytes:         c.convert.encodings.bytes(),
		Watchers:              c.registry.status(),
		LastError:             c.lastError.Load(),
	}
}

func (r *registry) status() []WatcherStatus {
	r.mu.Lock()
	all := make([]WatcherStatus, 0, len(r.mu.all))
	for w := range r.mu.all {
		s := WatcherStatus{
			Key: w.group.id.key, LabelSelector: w.group.id.label, FieldSelector: w.group.id.field,
			Parked: !w.live, Queued: len(w.result), Started: w.started,
		}
		if at := w.position; !w.live && at < r.mu.cursor {
			s.Lag = uint64(r.mu.cursor - at)
		}
		all = append(all, s)
	}
	r.mu.Unlock()
	slices.SortStableFunc(all, func(a, b WatcherStatus) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(b.Queued, a.Queued), a.Started.Compare(b.Started))
	})
	return all
}
