// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/kube-watchcache/watchcache/cacher/internal/fanout"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// The levels of what is logged. 0 is for what a person must mend, which is rare,
// and never for what each of a server's caches does: there may be hundreds.
const (
	// linesOfLife: the life of a cache. 2 is what Kubernetes recommends to run
	// servers with, for changes of state that help to understand what is seen later.
	linesOfLife = 2
	// linesOfLoss: a watch has ended though its client has not asked for it. The
	// client is likely to list again.
	linesOfLoss = 2
	// linesOfParking: a client is slow, and loses nothing.
	linesOfParking = 3
	// linesOfEnds: watches that end as all watches do.
	linesOfEnds = 4
)

// The requests that wake a cache, as the log names them.
const (
	wokenByGet   = "get"
	wokenByList  = "list"
	wokenByWatch = "watch"
	wokenByWait  = "wait" // a caller of Wait
)

func (e *engine) tellWoken(ctx context.Context, verb string) {
	e.log.V(linesOfLife).Info("A request wakes the watch cache", "verb", verb, "user", inLine(clientOf(ctx).User))
}

// tellListed tells that storage was listed. became: there was no state before, for
// the time after.
func (e *engine) tellListed(cause metrics.RelistCause, became bool, after time.Duration) {
	log := e.log.V(linesOfLife)
	if !log.Enabled() {
		return
	}
	stats := e.state.Stats()
	switch {
	case became:
		log.Info("The watch cache is ready", "after", after.Round(time.Millisecond).String(), "cause", cause.String(),
			"objects", stats.Objects, "resourceVersion", stats.RV)
	case e.readiness.ready():
		log.Info("The watch cache has listed its storage again", "cause", cause.String(),
			"objects", stats.Objects, "resourceVersion", stats.RV)
	}
}

// tellRecalled tells what came of going back to before the first list, which took so
// long. The error may have something of an object.
func (e *engine) tellRecalled(listed *watchcache.Snapshot, took time.Duration, err error) {
	log := e.log.V(linesOfLife)
	switch {
	case !log.Enabled():
	case err != nil:
		log.Info("The watch cache has no history of the time before its start. Watches from earlier versions get 410", "after", took.Round(time.Millisecond).String(),
			"resourceVersion", listed.RV(), "reason", withoutContent(err).Error())
	default:
		stats := e.state.Stats()
		log.Info("The watch cache has the storage's history of the time before its start", "after", took.Round(time.Millisecond).String(),
			"resourceVersion", listed.RV(), "from", stats.OldestRV, "events", stats.WindowEvents)
	}
}

// slept is called when an idle cache has ended its engine.
func (c *Cacher) slept() {
	c.metrics.FellAsleep()
	loggerOf(c.config.GroupResource).V(linesOfLife).Info("The watch cache fell asleep: no request has used it. The next one wakes it",
		"idleTimeout", c.config.IdleTimeout.String())
}

func (c *Cacher) tellStopped() {
	loggerOf(c.config.GroupResource).V(linesOfLife).Info("The watch cache was stopped")
}

// messageParked and endMessages are what is told of watches; see docs/logs.md.
const (
	messageParked     = "A watch is parked: its client is slow. It catches up from the window, and loses nothing while the window reaches back to it"
	messageSuppressed = "More watches than the log shows were parked or have ended"
)

// endMessages tell of watches that have ended, by reason.
var endMessages = map[metrics.EndReason]struct {
	level   int
	message string
}{
	metrics.EndExpired:  {linesOfLoss, "A watch has ended with 410: its client was slower than the window is long, or the window was cut"},
	metrics.EndStalled:  {linesOfLoss, "A watch has ended with 410: its client took none of the initial events for too long"},
	metrics.EndHeavy:    {linesOfLoss, "A watch has ended with 410: the initial events of slow clients kept too much memory"},
	metrics.EndParked:   {linesOfLoss, "A watch has ended: it was parked for too long"},
	metrics.EndRelist:   {linesOfLoss, "A watch has ended: the watch cache has listed its storage again, and does not know what happened in between"},
	metrics.EndFailed:   {linesOfLoss, "A watch has ended with an error: the storage could not deliver the next change"},
	metrics.EndStopped:  {linesOfEnds, "A watch has ended: its client has stopped it"},
	metrics.EndDeadline: {linesOfEnds, "A watch has ended: its time was over"},
	metrics.EndShutdown: {linesOfEnds, "A watch has ended: the watch cache was stopped or fell asleep"},
}

// lineOf returns the level and the message of a line about a watch.
func lineOf(reason metrics.EndReason) (int, string) {
	if reason == fanout.NotEnded {
		return linesOfParking, messageParked
	}
	line, ok := endMessages[reason]
	if !ok {
		return linesOfLoss, "A watch has ended"
	}
	return line.level, line.message
}

// wantsLine reports whether a watch that was parked, or has ended for the reason,
// is to have a line in the log.
func (e *engine) wantsLine(reason metrics.EndReason) bool {
	level, _ := lineOf(reason)
	return e.log.V(level).Enabled() && e.lines.due(reason, e.time.Now())
}

// tellWatcher writes the line of one watch, without names of objects, and nothing
// of the selectors, which may have some.
func (e *engine) tellWatcher(r fanout.Report) {
	level, message := lineOf(r.Reason)
	values := []any{
		"user", inLine(r.Client.User), "userAgent", inLine(r.Client.UserAgent), "address", inLine(r.Client.Address), "watch", r.ID,
		"behind", r.Lag, "behindFor", r.LagTime.Round(time.Millisecond).String(), "queued", r.Queued,
		"delivered", r.Delivered, "age", r.Age(e.config.Clock.Now()).Round(time.Second).String(),
	}
	if r.Reason != fanout.NotEnded {
		values = append(values, "reason", r.Reason.String())
	}
	e.log.V(level).Info(message, values...)
}

// tellSuppressed tells how many lines about watches were left out; all: also of
// an interval that is not over.
func (e *engine) tellSuppressed(all bool) {
	for _, s := range e.lines.over(e.time.Now(), all) {
		level, _ := lineOf(s.reason)
		what := s.reason.String()
		if s.reason == fanout.NotEnded {
			what = "parked"
		}
		e.log.V(level).Info(messageSuppressed, "reason", what, "suppressed", s.count, "within", s.within.Round(time.Second).String())
	}
}

// inLine returns what a client says of itself, cut to what a line has room for.
func inLine(text string) string {
	const most = 256
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

const (
	// linesAtOnce is how many lines of one kind about watches a cache writes in
	// each lineInterval. The rest is one line with a number.
	linesAtOnce  = 5
	lineInterval = time.Minute
)

// watcherLines limits the lines about watches, by kind: the reason for which they
// ended, or that they were parked. Its lock is held for a few fields.
type watcherLines struct {
	mu struct {
		sync.Mutex
		kinds map[metrics.EndReason]*linesOfKind
	}
}

// linesOfKind counts since the first line of an interval, which is on the
// timeline.
type linesOfKind struct {
	since             time.Duration
	lines, suppressed int
}

// due reports whether one more line of a kind may be written, and counts it.
func (w *watcherLines) due(reason metrics.EndReason, now time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := w.mu.kinds[reason]
	if kind == nil {
		if w.mu.kinds == nil {
			w.mu.kinds = make(map[metrics.EndReason]*linesOfKind)
		}
		kind = &linesOfKind{since: now}
		w.mu.kinds[reason] = kind
	}
	if kind.lines == linesAtOnce {
		kind.suppressed++
		return false
	}
	kind.lines++
	return true
}

// suppressed is how many lines of a kind were left out within a time.
type suppressed struct {
	reason metrics.EndReason
	count  int
	within time.Duration
}

// over ends the intervals that are over, or all, and returns what was left out in
// them.
func (w *watcherLines) over(now time.Duration, all bool) (out []suppressed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for reason, kind := range w.mu.kinds {
		if !all && now-kind.since < lineInterval {
			continue
		}
		if kind.suppressed > 0 {
			out = append(out, suppressed{reason, kind.suppressed, now - kind.since})
		}
		delete(w.mu.kinds, reason)
	}
	return out
}
