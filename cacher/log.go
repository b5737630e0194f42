// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// lifecycleLevel is the log level of the life of a cache: Kubernetes recommends to run
// servers at level 2, which shows changes of state that explain later lines. Level 0 is
// for errors that a person must repair, never for routine: a server may have hundreds of
// caches.
const lifecycleLevel = 2

// logListed logs that storage was listed. became: there was no state for the time after.
func (e *engine) logListed(cause metrics.RelistCause, became bool, after time.Duration) {
	stats := e.state.Stats()
	values := []any{"cause", cause.String(), "objects", stats.Objects, "resourceVersion", stats.RV}
	if became {
		e.log.V(lifecycleLevel).Info("The watch cache is ready", append([]any{"after", after.Round(time.Millisecond).String()}, values...)...)
	} else if e.readiness.ready() {
		e.log.V(lifecycleLevel).Info("The watch cache has listed its storage again", values...)
	}
}

// logBackfill logs the result of a backfill from a version, and how long it took.
func (e *engine) logBackfill(wanted uint64, took time.Duration, err error) {
	stats := e.state.Stats()
	log := e.log.V(lifecycleLevel).WithValues("wanted", wanted, "after", took.Round(time.Millisecond).String(), "from", stats.OldestRV)
	if err != nil {
		log.Info("The watch cache could not get the storage's history of the time before its window. Watches from there get 410",
			"reason", withoutContent(err, e.config.ResourcePrefix).Error())
		return
	}
	log.Info("The watch cache has the storage's history of the time before its window", "events", stats.WindowEvents)
}

// logIndex logs that an index was built or dropped, or could not be built.
func (e *engine) logIndex(change match.Adapted) {
	log := e.log.V(lifecycleLevel).WithValues("index", inLine(change.Index, clientText), "bytes", change.Bytes)
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
	loggerOf(c.config.GroupResource).V(lifecycleLevel).Info("The watch cache fell asleep: no request has used it. The next one wakes it",
		"idleTimeout", c.config.IdleTimeout.String())
}

// clientText is how much of a text from a client, such as its user agent, a line has.
const clientText = 256

// The log's advice to a person about an error that the cache recovers from.
const (
	remedyObject  = "repair or delete the object that the error names, or the changed ones if it names none; the cache then recovers by itself"
	remedyStorage = "look at the storage's health; the cache then recovers by itself"
	remedySize    = "the error has the size of a list and how much storage sends as one: remove large objects, raise the limit of storage or of a proxy before it, or use etcd 3.7, which sends a list in parts"
	// remedyDifference is for a cache that has another state than its storage.
	remedyDifference = "look for a proxy or a storage of your own that drops or reorders events, and for writes to etcd's data from outside; otherwise report it, please"
	remedyFunction   = "look at the functions that compute the resource's keys and attributes, or at the object that they fail for"
)

// remedyOf returns otherwise, unless a list was too large to be sent.
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
func (e *engine) warn(kind, message string, err error, remedy string) {
	now := e.config.Clock.Now()
	e.errors.add(message, publicText(err), now)
	if suppressed, ok := e.errors.due(kind, now); ok {
		klog.ErrorS(withoutContent(err, e.config.ResourcePrefix), message,
			"resource", e.config.GroupResource, "resourceVersion", e.state.RV(), "remedy", remedy, "suppressed", suppressed)
	}
}

// noteError notes an error that the cache recovers from by itself.
func (e *engine) noteError(message string, err error) {
	e.errors.add(message, publicText(err), e.config.Clock.Now())
	klog.V(1).InfoS(message, "resource", e.config.GroupResource, "err", withoutContent(err, e.config.ResourcePrefix))
}

const (
	// errorsKept is how many different errors a cache remembers, errorText how much of each, in
	// bytes.
	errorsKept, errorText = 16, 1 << 10
	// lineInterval is the time in which a cache writes one line for errors of one kind.
	lineInterval = time.Minute
)

// errorLog is the latest errors of a cache, over all the times that it was awake.
type errorLog struct {
	mu struct {
		sync.Mutex
		latest []status.Error // the latest last; no two with one text
		kinds  map[string]linesOfKind
	}
}

// linesOfKind is when the last line of a kind was logged, and how many were left out since.
type linesOfKind struct {
	last       time.Time
	suppressed int
}

// due reports whether one more line of a kind may be written, and how many were left out
// since the last one.
func (l *errorLog) due(kind string, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.mu.kinds[kind]
	if ok = now.Sub(of.last) >= lineInterval; ok {
		suppressed, of = of.suppressed, linesOfKind{last: now}
	} else {
		of.suppressed++
	}
	if l.mu.kinds == nil {
		l.mu.kinds = make(map[string]linesOfKind)
	}
	l.mu.kinds[kind] = of
	return suppressed, ok
}

// add notes an error by its public text. An error that is there already is counted.
func (l *errorLog) add(summary, message string, now time.Time) {
	e := status.Error{Summary: summary, Message: inLine(message, errorText), Time: now, Times: 1}
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
