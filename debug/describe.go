// SPDX-License-Identifier: Apache-2.0

package debug

import (
	"fmt"
	"strconv"
	"time"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
)

// description turns the status of one cache into the response to a request.
type description struct {
	status  cacher.Status
	now     time.Time
	prefix  string // of the resource's keys
	details bool
	values  string // as Cache.Values
}

func (d *description) cache() Cache {
	s := &d.status
	c := Cache{
		Resource: s.Resource, Values: d.values, Shadow: s.Shadow,
		Holds:  Holds{Objects: s.Objects, ObjectBytes: s.ObjectBytes, WindowBytes: s.WindowBytes, EncodingBytes: s.EncodingBytes, AdaptiveIndexes: s.AdaptiveIndexes},
		Window: d.window(), Counts: s.Totals,
		Watchers: d.watchers(),
	}
	c.State, c.Since, c.Reason = d.state()
	if !s.Asleep {
		c.Freshness = d.freshness()
	}
	if s.LastError != nil {
		last := d.problem(*s.LastError)
		c.LastError = &last
	}
	if !d.details {
		return c
	}
	for _, w := range s.Ended {
		c.Ended = append(c.Ended, d.ended(w))
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
	case s.Ready && s.Shadow > 0:
		return "ready", &s.Since, d.shadow()
	case s.Ready:
		return "ready", &s.Since, ""
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

// shadow is the result of the comparisons with the shipped cacher; Counts has them by kind.
func (d *description) shadow() string {
	differed := uint64(0)
	for _, n := range d.status.Totals.ShadowDiffered {
		differed += n
	}
	return fmt.Sprintf("in the shadow of the shipped cacher, which answers: %v of the requests are compared, and %d have differed", d.status.Shadow, differed)
}

// text is a summary, with the details if values are shown.
func (d *description) text(summary, details string) string {
	switch {
	case d.values != "shown" || details == "":
		return summary
	case summary == "":
		return details
	}
	return summary + ": " + details
}

func (d *description) problem(e status.Error) Problem {
	p := Problem{Summary: e.Summary, Time: e.Time, Times: max(1, e.Times)}
	if d.values == "shown" {
		p.Message = e.Message
	}
	return p
}

func (d *description) freshness() Freshness {
	f := Freshness{ResourceVersion: version(d.status.ResourceVersion), OldestResourceVersion: version(d.status.OldestResourceVersion)}
	if rv := d.status.StorageResourceVersion; rv > 0 {
		f.StorageResourceVersion, f.StorageAgeSeconds = version(rv), &d.status.StorageAgeSeconds
	}
	if silence := d.status.SilenceSeconds; silence > 0 {
		f.SilenceSeconds = &silence
	}
	return f
}

// version returns a resourceVersion, empty if there is none.
func version(rv uint64) string {
	if rv == 0 {
		return ""
	}
	return strconv.FormatUint(rv, 10)
}

func (d *description) window() Window {
	w := Window{Events: d.status.WindowEvents}
	if !d.status.WindowSince.IsZero() {
		w.Since, w.SpanSeconds = &d.status.WindowSince, seconds(d.status.WindowSince, d.now)
	}
	return w
}

func (d *description) watchers() Watchers {
	counts := d.status.Watches
	w := Watchers{
		Total: counts.Live + counts.Starting + counts.Parked,
		Live:  counts.Live, Starting: counts.Starting, Parked: counts.Parked,
		WorstLagEvents: counts.WorstLag, WorstLagSeconds: counts.WorstLagSeconds,
		Items: make([]Watcher, 0, len(d.status.Watchers)),
	}
	for _, s := range d.status.Watchers {
		w.Items = append(w.Items, Watcher{
			ID: s.ID, User: s.Client.User, UserAgent: s.Client.UserAgent, Address: s.Client.Address,
			Selection: d.selection(s.Key, s.LabelSelector, s.FieldSelector), State: string(s.State),
			LagEvents: s.Lag, LagSeconds: s.LagSeconds, Queued: s.Queued, Capacity: s.Capacity,
			Delivered: s.Delivered, HeldBytes: s.HeldBytes, Started: s.Started, AgeSeconds: seconds(s.Started, d.now),
		})
	}
	return w
}

func (d *description) ended(w status.Ended) Ended {
	return Ended{
		ID: w.ID, User: w.Client.User, UserAgent: w.Client.UserAgent, Address: w.Client.Address,
		Selection: d.selection(w.Key, w.LabelSelector, w.FieldSelector), Reason: w.Reason, Ended: w.Ended,
		AgeSeconds: seconds(w.Started, w.Ended), Delivered: w.Delivered, LagEvents: w.Lag,
	}
}

func (d *description) selection(key, label, field string) Selection {
	return selectionOf(d.prefix, key, label, field, d.values == "shown")
}
