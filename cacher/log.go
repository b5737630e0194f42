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
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// lifecycleLevel is the log level of a cache's life. Kubernetes recommends level 2 for servers.
// Level 0 is only for errors that need a person, since a server may have hundreds of caches.
const lifecycleLevel = 2

// journal writes the log lines of a cache and keeps its latest errors.
type journal struct {
	klog.Logger
	config  *Config
	state   *watchcache.State
	errors  *errorLog // the Cacher's
	outages outageMember
}

// event logs a change of the condition or an event that operators must see.
func (j *journal) event(ev event, before, after *condition) {
	switch ev.kind {
	case heard, versionRead:
		j.back(ev.now - before.outageSince)
	case versionFailed:
		j.warn("version", "Storage answers, but its version can't be read. The watch cache fails consistent reads", ev.cause,
			"let the server's user read keys and run read transactions in storage, and check the proxies in front of it")
	case tick:
		if after.contact != before.contact {
			j.lost(ev.now, after)
		}
	case listArrives:
		j.warn("differs", "The watch cache missed events: a list differs from it at the same resourceVersion. Its watches get 410",
			faultf(nil, "the list of %s at resourceVersion %d has other objects or versions than the cache at that resourceVersion", j.config.GroupResource, ev.rv), remedyDifference)
	case listed:
		j.listed(before, ev.now)
	case listRefused:
		j.warn("replace", "The watch cache could not use the listed objects. It keeps its state and lists again", ev.err, remedyFunction)
	case listFailed:
		j.listFailed(ev, after)
	case watchBroke:
		j.note("A storage watch ended. The watch cache resumes it", ev.err)
	case undeliverable:
		j.warn("undeliverable", summaryPaused, ev.err, remedyOf(ev.err, remedyObject))
	case changeRefused:
		j.warn("apply", "A change could not be applied. The watch cache stops at it and relists", ev.err, remedyFunction)
	case restored:
		j.warn("restored", "Storage went back to an earlier version. The watch cache relists and ends its watches", ev.err,
			"none if storage was restored from a backup; otherwise check whether it lost data")
	case suspicion:
		j.warn("contradicts", "The watch cache contradicts storage. It compares its state or relists; until then storage answers consistent reads", ev.err, remedyDifference)
	case differs:
		if after.persistent {
			j.warn("elsewhere", "The watch cache and storage have objects under different keys, even after a list. Storage answers reads of earlier resourceVersions", ev.err,
				"find objects that are stored under a key that does not match their name")
			return
		}
		j.warn("differs", "The watch cache missed events. It relists; until then storage answers consistent reads", ev.err, remedyDifference)
	case notCompared:
		j.notCompared(ev.err, after)
	case fellSilent:
		j.silence(ev.err)
	case reports:
		j.Info("Storage reports progress again. The watch cache serves consistent reads", "resourceVersion", j.state.RV())
	}
}

func (j *journal) listed(before *condition, now time.Duration) {
	stats := j.state.Stats()
	values := []any{"cause", before.cause.String(), "objects", stats.Objects, "resourceVersion", stats.RV}
	if before.served() {
		j.V(lifecycleLevel).Info("The watch cache relisted storage", values...)
		return
	}
	after := (now - before.since).Round(time.Millisecond)
	j.V(lifecycleLevel).Info("The watch cache is ready", append([]any{"after", after.String()}, values...)...)
}

func (j *journal) listFailed(ev event, after *condition) {
	const again = "Storage could not be listed. The watch cache retries"
	switch {
	case after.failedLists >= after.limits.failedLists && after.served():
		j.warn("undeliverable", summaryPaused, ev.err, remedyOf(ev.err, remedyObject))
	case after.failedLists >= after.limits.failedLists:
		j.warn("undeliverable", "Storage cannot deliver its objects. The watch cache is not ready, and retries", ev.err, remedyOf(ev.err, remedyObject))
	case after.contact == lost, after.failedLists > 0:
		j.note(again, ev.err)
	default:
		j.warn("list", again, ev.err, remedyOf(ev.err, remedyStorage))
	}
}

// notCompared logs a failed comparison. Compactions are normal, and an outage has its own line.
func (j *journal) notCompared(err error, after *condition) {
	const message = "The watch cache could not be compared with storage. It retries after the interval"
	switch {
	case apierrors.IsResourceExpired(err), after.phase == stopped:
	case after.contact != answering:
		j.note(message, err)
	default:
		j.warn("compare", message, err, "fix the error, or raise ConsistencyCheckInterval if a comparison takes longer than that")
	}
}

func (j *journal) silence(refused error) {
	err := errSilent
	remedy := "remove proxies that drop progress requests of watches, e.g. etcd's grpc-proxy; let WatchProgress return false for a storage that reports none"
	if refused != nil {
		err = refused
		remedy = "let the server's user send progress requests on watch streams, and check the proxies in front of storage"
	}
	j.warn("silent", "Storage answers requests, but does not report the progress of its watch. The watch cache sends consistent reads to storage, and retries after 5 s to 5 min", err, remedy)
}

// lost logs an outage, once for all caches on a server.
func (j *journal) lost(now time.Duration, after *condition) {
	goesOn := "the watch cache has no state yet and refuses most requests"
	if after.served() {
		goesOn = "consistent reads fail; the watch cache keeps serving open watches and reads at a resourceVersion"
	}
	j.errors.add(summaryLost, publicText(after.outageErr), j.config.Clock.Now())
	if caches, away := j.outages.note(); away == 1 {
		j.Error(withoutContent(after.outageErr, j.config.ResourcePrefix), summaryLost+": "+goesOn,
			"silence", (now - after.outageSince).Round(time.Second).String(), "resources", caches, "resourceVersion", j.state.RV(), "remedy", remedyStorage)
	}
}

// back logs the end of an outage once for all caches on a server.
func (j *journal) back(silence time.Duration) {
	if caches, away := j.outages.note(); away == 0 && caches > 0 {
		j.Info("Storage answers again", "silence", silence.Round(time.Second).String(), "resources", caches, "resourceVersion", j.state.RV())
	}
}

func (j *journal) backfilled(wanted uint64, took time.Duration, err error) {
	stats := j.state.Stats()
	log := j.V(lifecycleLevel).WithValues("wanted", wanted, "after", took.Round(time.Millisecond).String(), "from", stats.OldestRV)
	if err != nil {
		log.Info("The watch cache could not fetch history from before its window. Watches from there get 410",
			"reason", withoutContent(err, j.config.ResourcePrefix).Error())
		return
	}
	log.Info("The watch cache fetched history from before its window", "events", stats.WindowEvents)
}

func (j *journal) index(change match.Adapted) {
	log := j.V(lifecycleLevel).WithValues("index", inLine(change.Index, clientText), "bytes", change.Bytes)
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
func (j *journal) warn(kind, message string, err error, remedy string) {
	now := j.config.Clock.Now()
	j.errors.add(message, publicText(err), now)
	if suppressed, ok := j.errors.due(kind, now); ok {
		klog.ErrorS(withoutContent(err, j.config.ResourcePrefix), message,
			"resource", j.config.GroupResource, "resourceVersion", j.state.RV(), "remedy", remedy, "suppressed", suppressed)
	}
}

// note records an error that the cache recovers from.
func (j *journal) note(message string, err error) {
	j.errors.add(message, publicText(err), j.config.Clock.Now())
	klog.V(1).InfoS(message, "resource", j.config.GroupResource, "err", withoutContent(err, j.config.ResourcePrefix))
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

// outages records each server's awake caches, and which of them lost it. We log the first loss and
// the last recovery.
var outages = struct {
	sync.Mutex
	servers map[any]*outage
}{servers: make(map[any]*outage)}

// outage maps a server's caches to whether they lost it, and counts the losses.
type outage struct {
	caches map[*conditionHolder]bool
	lost   int
}

// outageMember is a cache among those of its server.
type outageMember struct {
	server    any
	condition *conditionHolder
}

func newOutageMember(config *Config, condition *conditionHolder) outageMember {
	if s, ok := config.Storage.(capability.ServerSharer); ok {
		return outageMember{s.Server(), condition}
	}
	return outageMember{condition, condition}
}

// note updates outages. It returns the number of caches on the same server, and how many lost
// it.
func (m outageMember) note() (caches, away int) {
	outages.Lock()
	defer outages.Unlock()
	server := outages.servers[m.server]
	if server == nil {
		server = &outage{caches: make(map[*conditionHolder]bool)}
		outages.servers[m.server] = server
	}
	if server.caches[m.condition] {
		server.lost--
	}
	now := m.condition.load()
	server.caches[m.condition] = now.contact == lost
	if now.phase == stopped {
		delete(server.caches, m.condition)
	}
	if server.caches[m.condition] {
		server.lost++
	}
	if len(server.caches) == 0 {
		delete(outages.servers, m.server)
	}
	return len(server.caches), server.lost
}
