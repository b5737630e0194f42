// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"fmt"
	"strconv"
	"time"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
)

// description converts the status of one cache to a response.
type description struct {
	id      string // as Cache.ID
	status  cacher.Status
	now     time.Time
	prefix  string // of the resource's keys
	details bool
	values  string // as Cache.Values
}

func (d *description) cache() Cache {
	s := &d.status
	c := Cache{
		ID: d.id, Resource: s.Resource, Values: d.values, Shadow: s.Shadow,
		Holds: Holds{
			Objects: s.Objects, ObjectBytes: s.ObjectBytes, WindowBytes: s.WindowBytes,
			EncodingBytes: s.EncodingBytes, AdaptiveIndexes: s.AdaptiveIndexes,
		},
		Window: Window{Events: s.WindowEvents}, Counts: s.Totals, Watchers: d.watchers(),
	}
	c.State, c.Since, c.Reason = d.state()
	if !s.WindowSince.IsZero() {
		c.Window.Since, c.Window.SpanSeconds = &s.WindowSince, seconds(s.WindowSince, d.now)
	}
	if !s.Asleep {
		c.Freshness = freshness(s)
	}
	if s.LastError != nil {
		last := d.problem(*s.LastError)
		c.LastError = &last
	}
	if !d.details {
		return c
	}
	for _, w := range s.Ended {
		c.Ended = append(c.Ended, Ended{w, d.selection(w.Key, w.LabelSelector, w.FieldSelector), seconds(w.Started, w.Ended)})
	}
	for _, e := range s.Errors {
		c.Errors = append(c.Errors, d.problem(e))
	}
	return c
}

func (d *description) state() (state string, since *time.Time, reason string) {
	s := &d.status
	switch {
	case s.Asleep && s.Ready:
		return "asleep", nil, ""
	case s.Paused != nil:
		return "paused", &s.Paused.Time, d.text(s.Paused.Summary, s.Paused.Message)
	case s.Lost != nil:
		return "lost", &s.Lost.Time, d.text(s.Lost.Summary, s.Lost.Message)
	case s.Ready && s.Silent:
		return "silent", nil, "storage answers and does not report progress: it is asked for consistent reads"
	case s.Ready:
		if s.Shadow > 0 { // Counts has the comparisons by kind
			differed := uint64(0)
			for _, n := range s.Totals.ShadowDiffered {
				differed += n
			}
			reason = fmt.Sprintf("in the shadow of the shipped cacher, which answers: %v of the requests are compared, and %d have differed", s.Shadow, differed)
		}
		return "ready", &s.Since, reason
	}
	if !s.Since.IsZero() {
		since = &s.Since
	}
	summary := ""
	if s.LastError != nil {
		summary = s.LastError.Summary
	}
	return "not ready", since, d.text(summary, s.NotReady)
}

// text returns the summary, with the details if values are shown.
func (d *description) text(summary, details string) string {
	switch {
	case d.values != "shown" || details == "":
		return summary
	case summary == "":
		return details
	}
	return summary + ": " + details
}

// problem returns an error, without its message unless values are shown.
func (d *description) problem(e status.Error) status.Error {
	if d.values != "shown" {
		e.Message = ""
	}
	e.Times = max(1, e.Times)
	return e
}

func freshness(s *cacher.Status) Freshness {
	f := Freshness{ResourceVersion: version(s.ResourceVersion), OldestResourceVersion: version(s.OldestResourceVersion)}
	if rv := s.StorageResourceVersion; rv > 0 {
		f.StorageResourceVersion, f.StorageAgeSeconds = version(rv), &s.StorageAgeSeconds
	}
	if s.SilenceSeconds > 0 {
		f.SilenceSeconds = &s.SilenceSeconds
	}
	return f
}

func version(rv uint64) string {
	if rv == 0 {
		return ""
	}
	return strconv.FormatUint(rv, 10)
}

func (d *description) watchers() Watchers {
	counts := d.status.Watches
	w := Watchers{
		Total:  counts.Live + counts.Starting + counts.Parked,
		Counts: counts,
		Items:  make([]Watcher, 0, len(d.status.Watchers)),
	}
	for _, s := range d.status.Watchers {
		w.Items = append(w.Items, Watcher{s, d.selection(s.Key, s.LabelSelector, s.FieldSelector), seconds(s.Started, d.now)})
	}
	return w
}

// seconds returns the time from a to b in seconds, at least 0.
func seconds(a, b time.Time) float64 { return max(0, b.Sub(a).Seconds()) }
