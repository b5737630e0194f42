// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/status"
)

// lifecycleLevel is the log level of a cache's life. Kubernetes recommends level 2 for servers.
// Level 0 is only for errors that need a person, since a server may have hundreds of caches.
const lifecycleLevel = 2

// logEvent logs a change of the condition or an event that operators must see.
func (e *engine) logEvent(ev event, before, after *condition) {
	switch ev.kind {
	case heard, versionRead:
		e.logBack(ev.now - before.outageSince)
	case versionFailed:
		e.warn("version", "Storage answers, but its version can't be read. The watch cache fails consistent reads", ev.cause,
			"let the server's user read keys and run read transactions in storage, and check the proxies in front of it")
	case tick:
		if after.contact != before.contact {
			e.logLost(ev.now-after.outageSince, after.outageErr)
		}
	case listArrives:
		e.warn("differs", "The watch cache missed events: a list differs from it at the same resourceVersion. Its watches get 410",
			faultf(nil, "the list of %s at resourceVersion %d has other objects or versions than the cache at that resourceVersion", e.config.GroupResource, ev.rv), remedyDifference)
	case listed:
		e.logListed(before, ev.now)
	case listRefused:
		e.warn("replace", "The watch cache could not use the listed objects. It keeps its state and lists again", ev.err, remedyFunction)
	case listFailed:
		e.logListFailed(ev, after)
	case watchBroke:
		e.noteError("A storage watch ended. The watch cache resumes it", ev.err)
	case undeliverable:
		e.warn("undeliverable", summaryPaused, ev.err, remedyOf(ev.err, remedyObject))
	case changeRefused:
		e.warn("apply", "A change could not be applied. The watch cache stops at it and relists", ev.err, remedyFunction)
	case restored:
		e.warn("restored", "Storage went back to an earlier version. The watch cache relists and ends its watches", ev.err,
			"none if storage was restored from a backup; otherwise check whether it lost data")
	case suspicion:
		e.warn("contradicts", "The watch cache contradicts storage. It compares its state or relists; until then storage answers consistent reads", ev.err, remedyDifference)
	case differs:
		if after.persistent {
			e.warn("elsewhere", "The watch cache and storage have objects under different keys, even after a list. Storage answers reads of earlier resourceVersions", ev.err,
				"find objects that are stored under a key that does not match their name")
			return
		}
		e.warn("differs", "The watch cache missed events. It relists; until then storage answers consistent reads", ev.err, remedyDifference)
	case notCompared:
		e.logNotCompared(ev.err, after)
	case fellSilent:
		e.logSilence()
	case reports:
		e.log.Info("Storage reports progress again. The watch cache serves consistent reads", "resourceVersion", e.state.RV())
	}
}

func (e *engine) logListed(before *condition, now time.Duration) {
	stats := e.state.Stats()
	values := []any{"cause", before.cause.String(), "objects", stats.Objects, "resourceVersion", stats.RV}
	if before.served() {
		e.log.V(lifecycleLevel).Info("The watch cache relisted storage", values...)
		return
	}
	after := (now - before.since).Round(time.Millisecond)
	e.log.V(lifecycleLevel).Info("The watch cache is ready", append([]any{"after", after.String()}, values...)...)
}

func (e *engine) logListFailed(ev event, after *condition) {
	const again = "Storage could not be listed. The watch cache retries"
	switch {
	case after.failedLists >= after.limits.failedLists && after.served():
		e.warn("undeliverable", summaryPaused, ev.err, remedyOf(ev.err, remedyObject))
	case after.failedLists >= after.limits.failedLists:
		e.warn("undeliverable", "Storage cannot deliver its objects. The watch cache is not ready, and retries", ev.err, remedyOf(ev.err, remedyObject))
	case after.contact == lost, after.failedLists > 0:
		e.noteError(again, ev.err)
	default:
		e.warn("list", again, ev.err, remedyOf(ev.err, remedyStorage))
	}
}

// logNotCompared logs a failed comparison. Compactions are normal, and an outage has its own line.
func (e *engine) logNotCompared(err error, after *condition) {
	const message = "The watch cache could not be compared with storage. It retries after the interval"
	switch {
	case apierrors.IsResourceExpired(err), e.ctx.Err() != nil:
	case after.contact != answering:
		e.noteError(message, err)
	default:
		e.warn("compare", message, err, "fix the error, or raise ConsistencyCheckInterval if a comparison takes longer than that")
	}
}

func (e *engine) logSilence() {
	err := errSilent
	remedy := "remove proxies that drop progress requests of watches, e.g. etcd's grpc-proxy; let WatchProgress return false for a storage that reports none"
	if refused := e.progressFault.Load(); refused != nil {
		err = *refused
		remedy = "let the server's user send progress requests on watch streams, and check the proxies in front of storage"
	}
	e.warn("silent", "Storage answers requests, but does not report the progress of its watch. The watch cache sends consistent reads to storage, and retries after 5 s to 5 min", err, remedy)
}

// logLost logs an outage once for all caches on a server.
func (e *engine) logLost(silence time.Duration, err error) {
	goesOn := "the watch cache has no state yet and refuses most requests"
	if e.condition.load().served() {
		goesOn = "consistent reads fail; the watch cache keeps serving open watches and reads at a resourceVersion"
	}
	e.errors.add(summaryLost, publicText(err), e.config.Clock.Now())
	if caches, away := e.noteOutage(); away == 1 {
		e.log.Error(withoutContent(err, e.config.ResourcePrefix), summaryLost+": "+goesOn,
			"silence", silence.Round(time.Second).String(), "resources", caches, "resourceVersion", e.state.RV(), "remedy", remedyStorage)
	}
}

// logBack logs the end of an outage once for all caches on a server.
func (e *engine) logBack(silence time.Duration) {
	if caches, away := e.noteOutage(); away == 0 && caches > 0 {
		e.log.Info("Storage answers again", "silence", silence.Round(time.Second).String(), "resources", caches, "resourceVersion", e.state.RV())
	}
}

func (e *engine) logBackfill(wanted uint64, took time.Duration, err error) {
	stats := e.state.Stats()
	log := e.log.V(lifecycleLevel).WithValues("wanted", wanted, "after", took.Round(time.Millisecond).String(), "from", stats.OldestRV)
	if err != nil {
		log.Info("The watch cache could not fetch history from before its window. Watches from there get 410",
			"reason", withoutContent(err, e.config.ResourcePrefix).Error())
		return
	}
	log.Info("The watch cache fetched history from before its window", "events", stats.WindowEvents)
}

func (e *engine) logIndex(change match.Adapted) {
	log := e.log.V(lifecycleLevel).WithValues("index", inLine(change.Index, clientText), "bytes", change.Bytes)
	switch {
	case change.Dropped:
		log.Info("The watch cache dropped an adaptive index: not enough reads use it, or its memory limit was reached")
	case change.Err != nil:
		log.Info("The watch cache could not build an adaptive index", "reason", change.Err.Error())
	default:
		log.Info("The watch cache built an adaptive index")
	}
}

// clientText is the maximum length of a client's text in a line.
const clientText = 256

// Advice to operators.
const (
	remedyObject  = "repair or delete the object that the error names, or the latest changed ones if it names none; the cache then recovers by itself"
	remedyStorage = "check storage's health; the cache then recovers by itself"
	remedySize    = "delete large objects, raise the gRPC message limit named in the error in etcd or the proxy, or use etcd 3.7, which streams lists"
	// remedyDifference is for a cache that differs from storage.
	remedyDifference = "check for a proxy or a custom storage that drops or reorders events, and for direct writes to etcd; otherwise please report it"
	remedyFunction   = "fix the functions that compute the resource's keys and attributes, or the object that they fail for"
)

func remedyOf(err error, otherwise string) string {
	if source.TooLarge(err) {
		return remedySize
	}
	return otherwise
}

const (
	summaryPaused = "The watch cache is paused: storage cannot deliver the next change. It refuses watches, sends newer reads to storage, and retries the list"
	summaryLost   = "Storage does not answer"
)

func loggerOf(resource schema.GroupResource) klog.Logger {
	return klog.LoggerWithValues(klog.LoggerWithName(klog.Background(), "watchcache"), "resource", resource.String())
}

// warn records and logs an error that needs a person, at most once a minute per kind. message says
// what happened and how the cache responds, remedy how to repair it.
func (e *engine) warn(kind, message string, err error, remedy string) {
	now := e.config.Clock.Now()
	e.errors.add(message, publicText(err), now)
	if suppressed, ok := e.errors.due(kind, now); ok {
		klog.ErrorS(withoutContent(err, e.config.ResourcePrefix), message,
			"resource", e.config.GroupResource, "resourceVersion", e.state.RV(), "remedy", remedy, "suppressed", suppressed)
	}
}

// noteError records an error that the cache recovers from.
func (e *engine) noteError(message string, err error) {
	e.errors.add(message, publicText(err), e.config.Clock.Now())
	klog.V(1).InfoS(message, "resource", e.config.GroupResource, "err", withoutContent(err, e.config.ResourcePrefix))
}

const (
	// errorsKept is the number of errors that a cache remembers, errorText their maximum size in
	// bytes.
	errorsKept, errorText = 16, 1 << 10
	// lineInterval is the minimum time between two lines of one kind.
	lineInterval = time.Minute
)

// errorLog holds the latest errors of a cache, across sleep.
type errorLog struct {
	mu struct {
		sync.Mutex
		latest []status.Error // distinct, oldest first
		kinds  map[string]linesOfKind
	}
}

// linesOfKind is the time of a kind's last line and the number suppressed since.
type linesOfKind struct {
	last       time.Time
	suppressed int
}

// due reports whether to log another line of a kind, and how many were suppressed since the last.
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

// add records an error by its public text, or counts it again.
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

// all returns the errors, latest first.
func (l *errorLog) all() []status.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.mu.latest)
	slices.Reverse(all)
	return all
}
