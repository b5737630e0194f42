// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/dispatch"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// Log levels. 0 is for errors that a person must repair, which are rare; never for
// routine, since a server may have hundreds of caches.
const (
	// linesOfLife: the life of a cache. Kubernetes recommends to run servers at level 2,
	// which shows changes of state that explain later lines.
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

func (e *engine) logWoken(ctx context.Context, verb string) {
	e.log.V(linesOfLife).Info("A request wakes the watch cache", "verb", verb, "user", inLine(clientOf(ctx).User))
}

// logListed logs that storage was listed. became: there was no state before, for
// the time after.
func (e *engine) logListed(cause metrics.RelistCause, became bool, after time.Duration) {
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

// logBackfill logs the result of a backfill from a version, and how long it took. The
// error may have something of an object.
func (e *engine) logBackfill(wanted uint64, took time.Duration, err error) {
	log := e.log.V(linesOfLife)
	if !log.Enabled() {
		return
	}
	stats := e.state.Stats()
	took = took.Round(time.Millisecond)
	if err != nil {
		log.Info("The watch cache could not get the storage's history of the time before its window. Watches from there get 410",
			"wanted", wanted, "after", took.String(), "from", stats.OldestRV, "reason", withoutContent(err, e.config.ResourcePrefix).Error())
		return
	}
	log.Info("The watch cache has the storage's history of the time before its window",
		"wanted", wanted, "after", took.String(), "from", stats.OldestRV, "events", stats.WindowEvents)
}

// logIndex logs that an index was built or dropped, or could not be built.
func (e *engine) logIndex(change match.Adapted) {
	log := e.log.V(linesOfLife).WithValues("index", inLine(change.Index), "bytes", change.Bytes)
	switch {
	case change.Dropped:
		log.Info("The watch cache has dropped an index: it saves reads less than it costs, or there is no room for it")
	case change.Err != nil:
		log.Info("The watch cache could not build an index that reads need", "reason", change.Err.Error())
	default:
		log.Info("The watch cache has built an index that reads need")
	}
}

// slept is called when an idle cache has ended its engine.
func (c *Cacher) slept() {
	c.metrics.FellAsleep()
	loggerOf(c.config.GroupResource).V(linesOfLife).Info("The watch cache fell asleep: no request has used it. The next one wakes it",
		"idleTimeout", c.config.IdleTimeout.String())
}

func (c *Cacher) logStopped() {
	loggerOf(c.config.GroupResource).V(linesOfLife).Info("The watch cache was stopped")
}

// docs/runbook.md explains messageParked and endMessages.
const (
	messageParked     = "A watch is parked: its client is slow. It catches up from the window, and loses nothing while the window reaches back to it"
	messageSuppressed = "More watches than the log shows were parked or have ended"
)

// endMessages has the message for a watch that has ended, by reason.
var endMessages = map[metrics.EndReason]struct {
	level   int
	message string
}{
	metrics.EndExpired:  {linesOfLoss, "A watch has ended with 410: its client was slower than the window is long, or the window was cut"},
	metrics.EndStalled:  {linesOfLoss, "A watch has ended with 410: its client took none of the initial events for too long"},
	metrics.EndHeavy:    {linesOfLoss, "A watch has ended with 410: the initial events of slow clients kept too much memory"},
	metrics.EndRelist:   {linesOfLoss, "A watch has ended: the watch cache has listed its storage again, and does not know what happened in between"},
	metrics.EndFailed:   {linesOfLoss, "A watch has ended with an error: the storage could not deliver the next change"},
	metrics.EndStopped:  {linesOfEnds, "A watch has ended: its client has stopped it"},
	metrics.EndDeadline: {linesOfEnds, "A watch has ended: its time was over"},
	metrics.EndShutdown: {linesOfEnds, "A watch has ended: the watch cache was stopped or fell asleep"},
}

// lineOf returns the level and the message of a line about a watch.
func lineOf(reason metrics.EndReason) (int, string) {
	if reason == dispatch.NotEnded {
		return linesOfParking, messageParked
	}
	line, ok := endMessages[reason]
	if !ok {
		return linesOfLoss, "A watch has ended"
	}
	return line.level, line.message
}

// wantsLine reports whether a watch that was parked, or has ended for the reason,
// gets a line in the log.
func (e *engine) wantsLine(reason metrics.EndReason) bool {
	level, _ := lineOf(reason)
	if !e.log.V(level).Enabled() {
		return false
	}
	_, due := e.lines.due(reason, e.time.Now())
	return due
}

// logWatcher writes the line of one watch, without names of objects, and nothing
// of the selectors, which may have some.
func (e *engine) logWatcher(r dispatch.Report) {
	level, message := lineOf(r.Reason)
	values := []any{
		"user", inLine(r.Client.User), "userAgent", inLine(r.Client.UserAgent), "address", inLine(r.Client.Address), "watch", r.ID,
		"behind", r.Lag, "behindFor", time.Duration(r.LagSeconds * float64(time.Second)).Round(time.Millisecond).String(), "queued", r.Queued,
		"delivered", r.Delivered, "age", r.Age(e.config.Clock.Now()).Round(time.Second).String(),
	}
	if r.Reason != dispatch.NotEnded {
		values = append(values, "reason", r.Reason.String())
	}
	e.log.V(level).Info(message, values...)
}

// logSuppressed logs how many lines about watches were left out; all: also of
// an interval that is not over.
func (e *engine) logSuppressed(all bool) {
	for _, s := range e.lines.over(e.time.Now(), all) {
		level, _ := lineOf(s.kind)
		what := s.kind.String()
		if s.kind == dispatch.NotEnded {
			what = "parked"
		}
		e.log.V(level).Info(messageSuppressed, "reason", what, "suppressed", s.count, "within", s.within.Round(time.Second).String())
	}
}

// inLine cuts a text from a client, such as its user agent, to a length fit for a line.
func inLine(text string) string {
	const most = 256
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

const (
	// linesAtOnce is how many lines about watches of one reason a cache writes in each
	// lineInterval; one line has the number of the others. warningsAtOnce is the same
	// for errors of one kind.
	linesAtOnce    = 5
	warningsAtOnce = 1
	lineInterval   = time.Minute
)

// limiter limits the lines of each kind: so many at once in each lineInterval, which
// begins with the first line. Its lock is held for a few fields.
type limiter[K comparable] struct {
	atOnce int
	mu     struct {
		sync.Mutex
		kinds map[K]*linesOfKind
	}
}

// linesOfKind counts since the first line of an interval, which is on the timeline.
type linesOfKind struct {
	since             time.Duration
	lines, suppressed int
}

// due reports whether one more line of a kind may be written, and counts it. due
// returns how many were suppressed in the interval that has ended, if one has.
func (l *limiter[K]) due(kind K, now time.Duration) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.mu.kinds[kind]
	if of == nil || now-of.since >= lineInterval {
		if of != nil {
			suppressed = of.suppressed
		}
		if l.mu.kinds == nil {
			l.mu.kinds = make(map[K]*linesOfKind)
		}
		of = &linesOfKind{since: now}
		l.mu.kinds[kind] = of
	}
	if of.lines == l.atOnce {
		of.suppressed++
		return 0, false
	}
	of.lines++
	return suppressed, true
}

// suppressed is how many lines of a kind were left out within a time.
type suppressed[K comparable] struct {
	kind   K
	count  int
	within time.Duration
}

// over ends the intervals that have passed, or all, and returns the counts of suppressed
// lines.
func (l *limiter[K]) over(now time.Duration, all bool) (out []suppressed[K]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind, of := range l.mu.kinds {
		if !all && now-of.since < lineInterval {
			continue
		}
		if of.suppressed > 0 {
			out = append(out, suppressed[K]{kind, of.suppressed, now - of.since})
		}
		delete(l.mu.kinds, kind)
	}
	return out
}

// The log's advice to a person about an error that the cache recovers from.
const (
	remedyObject  = "repair or delete the object that the error names, or the changed ones if it names none; the cache then recovers by itself"
	remedyStorage = "look at the storage's health; the cache then recovers by itself"
	remedySize    = "the error has the size of a list and how much storage sends as one: remove large objects, raise the limit of storage or of a proxy before it, or use etcd 3.7, which sends a list in parts"
	// remedyDifference is for a cache that has another state than its storage.
	remedyDifference = "look for a proxy or a storage of your own that drops or reorders events, and for writes to etcd's data from outside; otherwise report it, please"
	remedyFunction   = "look at the functions that compute the resource's keys and attributes, or at the object that they fail for"
)

// remedyOf returns the advice for a list that failed: otherwise, unless the list was too
// large to be sent.
func remedyOf(err error, otherwise string) string {
	if source.TooLarge(err) {
		return remedySize
	}
	return otherwise
}

const (
	// summaryPaused describes a cache that pauses, summaryLost a storage that is lost.
	summaryPaused = "Storage cannot deliver the next change. The watch cache is paused: watches are refused, reads that need more than it has go to storage, and it lists storage again and again until that succeeds"
	summaryLost   = "The storage does not answer"
)

// loggerOf returns the logger of a resource's cache. All lines of one cache have
// the resource in the same form.
func loggerOf(resource schema.GroupResource) klog.Logger {
	return klog.LoggerWithValues(klog.LoggerWithName(klog.Background(), "watchcache"), "resource", resource.String())
}

// warn records an error that a person must repair, and logs it, once a minute for each
// kind: message says what happened and how the cache responds, remedy how to repair it.
// The log has keys of objects, and never their content; Status has neither.
func (e *engine) warn(kind, message string, err error, remedy string) {
	e.errors.add(message, publicText(err), e.config.Clock.Now())
	if suppressed, ok := e.warnings.due(kind, e.time.Now()); ok {
		klog.ErrorS(withoutContent(err, e.config.ResourcePrefix), message,
			"resource", e.config.GroupResource, "resourceVersion", e.state.RV(), "remedy", remedy, "suppressed", suppressed)
	}
}

// noteError notes an error that the cache recovers from by itself. The message
// says what happened, and is the same for all resources and objects.
func (e *engine) noteError(message string, err error) {
	e.errors.add(message, publicText(err), e.config.Clock.Now())
	klog.V(1).InfoS(message, "resource", e.config.GroupResource, "err", withoutContent(err, e.config.ResourcePrefix))
}

// errorsKept is how many different errors a cache remembers.
const errorsKept = 16

// errorLog is the latest errors of a cache, over all the times that it was
// awake.
type errorLog struct {
	mu struct {
		sync.Mutex
		latest []status.Error // the latest last; no two with one text
	}
}

// add notes an error by its public text. An error that is there already is counted.
func (l *errorLog) add(summary, message string, now time.Time) {
	e := status.Error{Summary: summary, Message: message, Time: now, Times: 1}
	l.mu.Lock()
	defer l.mu.Unlock()
	same := slices.IndexFunc(l.mu.latest, func(o status.Error) bool { return o.Summary == summary && o.Message == e.Message })
	switch {
	case same >= 0:
		e.Times += l.mu.latest[same].Times
		l.mu.latest = slices.Delete(l.mu.latest, same, same+1)
	case len(l.mu.latest) == errorsKept:
		l.mu.latest = slices.Delete(l.mu.latest, 0, 1)
	}
	l.mu.latest = append(l.mu.latest, e)
}

// all returns the errors, the latest first.
func (l *errorLog) all() []status.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.mu.latest)
	slices.Reverse(all)
	return all
}
