// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Status describes a cache at one time.
type Status struct {
	// Resource is the resource's name and group.
	Resource string `json:"resource"`
	// Ready reports whether the cache can serve: it has its state, or it sleeps
	// and a request will wake it. For a sleeping cache the fields below are empty,
	// but for the errors.
	Ready bool `json:"ready"`
	// Asleep reports whether the cache sleeps: it has not been used yet, or not
	// for the idle timeout.
	Asleep bool `json:"asleep,omitempty"`
	// NotReady is why the cache is not ready, if that is known.
	NotReady string `json:"notReady,omitempty"`
	// Since is when the cache became ready, or when it ceased to be.
	Since time.Time `json:"since,omitzero"`
	// ResourceVersion is what the cache has reached, OldestResourceVersion
	// what a watch can still resume from.
	ResourceVersion       uint64 `json:"resourceVersion"`
	OldestResourceVersion uint64 `json:"oldestResourceVersion"`
	// Objects is how many objects are cached, and ObjectBytes the memory that
	// they take, with all that they refer to. The memory is an estimate: what
	// several references share is counted for each.
	Objects     int   `json:"objects"`
	ObjectBytes int64 `json:"objectBytes"`
	// WindowEvents is how many events are kept, and WindowBytes the memory
	// that they take beyond the objects; EncodingBytes is the memory of the
	// serializations that are kept.
	WindowEvents  int   `json:"windowEvents"`
	WindowBytes   int64 `json:"windowBytes"`
	EncodingBytes int64 `json:"encodingBytes"`
	// WindowSamples are up to 64 events of the window at even distances, the
	// oldest and the newest among them, in order.
	WindowSamples []WindowSample `json:"windowSamples,omitempty"`
	// Watches counts the open watches.
	Watches WatchCounts `json:"watches"`
	// Watchers is all open watches, the ones that lag most first; or the page of
	// them that was asked for.
	Watchers []WatcherStatus `json:"watchers"`
	// Ended is watches that have ended since the cache was last awake, the latest
	// first: up to 32 that their clients ended or that reached their deadline, and
	// up to 32 others.
	Ended []EndedWatch `json:"ended,omitempty"`
	// SilenceSeconds is for how long storage was not heard of: no event, no report
	// of progress, no answer. The number is 0 if storage was not heard of at
	// all.
	SilenceSeconds float64 `json:"silenceSeconds"`
	// StorageResourceVersion is the highest version that storage is known to have
	// had since it was last listed, and StorageAgeSeconds for how long nothing was
	// heard of whether it still has that one. Storage counts the changes of all its
	// resources and tells its version only when it is asked, so that the version is
	// above the cache's without the cache being behind.
	StorageResourceVersion uint64  `json:"storageResourceVersion"`
	StorageAgeSeconds      float64 `json:"storageAgeSeconds"`
	// Totals is what the cache has counted since it was last awake. Several caches
	// of one resource, with the same Metrics, count together.
	Totals Totals `json:"totals"`
	// History is what the cache did in the last ten minutes, in steps of 5 s while
	// it was awake, the oldest first.
	History []HistorySample `json:"history,omitempty"`
	// Paused is why the cache can't follow its storage, and since when: storage
	// has a change that it can't deliver or that can't be applied. Paused is
	// nil while the cache follows.
	Paused *LastError `json:"paused,omitempty"`
	// Lost is why storage is lost, and since when: requests got no answer for the
	// whole of Config.StorageTimeout, and storage was not heard of since. Lost
	// is nil while storage is there.
	Lost *LastError `json:"lost,omitempty"`
	// LastError is the last thing that went wrong, nil if nothing did. Errors has
	// the last 16 different ones, the latest first.
	LastError *LastError  `json:"lastError,omitempty"`
	Errors    []LastError `json:"errors,omitempty"`
}

// WindowSample is one event of the window. Events is how many events came between
// the sample before and this one, this one included.
type WindowSample struct {
	ResourceVersion uint64    `json:"resourceVersion"`
	Received        time.Time `json:"received"`
	Events          int       `json:"events"`
}

// Totals is what a cache has counted.
type Totals = metrics.Totals

// windowSamples is how many events Status.WindowSamples has at most.
const windowSamples = 64

// Status describes the cache as it is now, with all its watchers. Status holds
// locks only while it copies, and wakes no cache that sleeps.
func (c *Cacher) Status() Status {
	s, _ := c.StatusPage(WatcherQuery{Limit: -1})
	return s
}

// StatusPage is Status with the watchers of one page. The error names the field
// of the query that is invalid.
func (c *Cacher) StatusPage(q WatcherQuery) (Status, error) {
	if err := q.validate(); err != nil {
		return Status{}, err
	}
	var s Status
	if e := c.lifecycle.current(); e != nil {
		s = e.status(q)
	} else {
		s = Status{Resource: c.config.GroupResource.String(), Ready: c.Ready(), Asleep: true, Watchers: []WatcherStatus{}}
	}
	s.Totals, s.History = c.metrics.Totals(), c.history.samples(c.config.Clock.Now())
	if s.Errors = c.errors.all(); len(s.Errors) > 0 {
		s.LastError = &s.Errors[0]
	}
	return s, nil
}

func (e *engine) status(q WatcherQuery) Status {
	stats := e.state.Stats()
	s := Status{
		Resource:              e.config.GroupResource.String(),
		ResourceVersion:       stats.RV,
		OldestResourceVersion: stats.OldestRV,
		Objects:               stats.Objects,
		ObjectBytes:           stats.ObjectBytes,
		WindowEvents:          stats.WindowEvents,
		WindowBytes:           stats.WindowBytes,
		EncodingBytes:         e.encodingBytes(),
		WindowSamples:         e.windowSamples(),
		Ended:                 endedWatches(e.fanout.Endings()),
	}
	if silence, heard := e.silence(); heard {
		s.SilenceSeconds = silence.Seconds()
		s.StorageResourceVersion, s.StorageAgeSeconds = stats.RV, s.SilenceSeconds
		if told := e.versions.Highest(); told > stats.RV {
			age := max(0, e.time.Now()-time.Duration(e.toldAt.Load()))
			s.StorageResourceVersion, s.StorageAgeSeconds = told, age.Seconds()
		}
	}
	s.Ready, s.Since = e.readiness.readySince()
	if why := e.readiness.why(); why != nil {
		s.NotReady = why.Error()
	}
	if since, why := e.readiness.pausedBy(); why != nil {
		s.Paused = &LastError{Summary: summaryPaused, Message: withoutContent(why).Error(), Time: since}
	}
	if silence, why := e.contact.lostSince(); why != nil {
		s.Lost = &LastError{Summary: summaryLost, Message: withoutContent(why).Error(), Time: e.config.Clock.Now().Add(-silence)}
	}
	s.Watchers, s.Watches = e.watchers(q)
	return s
}

// windowSamples returns events of the window with the times at which the cache
// got them, by the clock as it is now.
func (e *engine) windowSamples() []WindowSample {
	samples := e.state.Sample(windowSamples)
	out := make([]WindowSample, len(samples))
	now, passed := e.config.Clock.Now(), e.time.Now()
	for i, s := range samples {
		before := s.Position - 1
		if i > 0 {
			before = samples[i-1].Position
		}
		out[i] = WindowSample{
			ResourceVersion: s.RV, Received: now.Add(time.Duration(s.Received) - passed),
			Events: int(s.Position - before),
		}
	}
	return out
}
