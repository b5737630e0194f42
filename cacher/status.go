// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"time"

	"github.com/kube-watchcache/watchcache/cacher/status"
)

// Status describes a cache at one time.
type Status = status.Cache

// windowSamples is how many events Status.WindowSamples has at most.
const windowSamples = 64

// Status describes the cache as it is now, with all its watchers. It holds
// locks only while it copies, and wakes no cache that sleeps.
func (c *Cacher) Status() Status {
	s, _ := c.StatusPage(status.Query{Limit: -1})
	return s
}

// StatusPage is Status with the watchers of one page. The error names the field
// of the query that is invalid.
func (c *Cacher) StatusPage(q status.Query) (Status, error) {
	if err := q.Validate(); err != nil {
		return Status{}, err
	}
	var s Status
	if e := c.lifecycle.current(); e != nil {
		s = e.status(q)
	} else {
		s = Status{Resource: c.config.GroupResource.String(), Ready: c.Ready(), Asleep: true, Watchers: []status.Watcher{}}
	}
	s.Shadow = c.config.shadow
	s.Totals, s.History = c.metrics.Totals(), c.history.samples(c.config.Clock.Now())
	if s.Errors = c.errors.all(); len(s.Errors) > 0 {
		s.LastError = &s.Errors[0]
	}
	return s, nil
}

func (e *engine) status(q status.Query) Status {
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
		AdaptiveIndexes:       e.indexes.Adaptive(),
		WindowSamples:         e.windowSamples(),
		Ended:                 e.fanout.Endings(),
	}
	if silence, heard := e.silence(); heard {
		s.SilenceSeconds = silence.Seconds()
		s.StorageResourceVersion, s.StorageAgeSeconds = stats.RV, s.SilenceSeconds
		if told := e.versions.Highest(); told > stats.RV {
			age := max(0, e.time.Now()-time.Duration(e.toldAt.Load()))
			s.StorageResourceVersion, s.StorageAgeSeconds = told, age.Seconds()
		}
	}
	s.Silent = e.progress.Silent()
	s.Ready, s.Since = e.readiness.readySince()
	if why := e.readiness.why(); why != nil {
		s.NotReady = publicText(why)
	}
	if since, why := e.readiness.pausedBy(); why != nil {
		s.Paused = &status.Error{Summary: summaryPaused, Message: publicText(why), Time: since}
	}
	if silence, why := e.health.lostSince(); why != nil {
		s.Lost = &status.Error{Summary: summaryLost, Message: publicText(why), Time: e.config.Clock.Now().Add(-silence)}
	}
	s.Watchers, s.Watches = e.fanout.Watches(q)
	return s
}

// windowSamples returns events of the window with the times at which the cache
// got them, by the clock as it is now.
func (e *engine) windowSamples() []status.WindowSample {
	samples := e.state.Sample(windowSamples)
	out := make([]status.WindowSample, len(samples))
	now, passed := e.config.Clock.Now(), e.time.Now()
	for i, s := range samples {
		before := s.Position - 1
		if i > 0 {
			before = samples[i-1].Position
		}
		out[i] = status.WindowSample{
			ResourceVersion: s.RV, Received: now.Add(time.Duration(s.Received) - passed),
			Events: int(s.Position - before),
		}
	}
	return out
}
