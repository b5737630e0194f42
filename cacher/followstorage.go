// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

const (
	// historyInterval is the time between two looks whether storage still has the same
	// history.
	historyInterval = time.Minute
	// quietTimeouts times StorageTimeout is the silence after which storage is asked
	// whether it is there. A server has many quiet caches.
	quietTimeouts = 3
	// askFirst is how long storage is unresponsive, at most, before it is asked, and
	// askInDoubt the pause between two questions from then on.
	askFirst   = 5 * time.Second
	askInDoubt = 2 * time.Second
	// unlistedAfter is how many lists in a row must fail, while storage answers, until
	// an object is blamed.
	unlistedAfter = 2
)

// reflect lists and watches storage, again and again with growing pauses,
// until the context is done.
func (e *engine) reflect(ctx context.Context, reflector *cache.Reflector) {
	pause := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 5 * time.Second}
	_ = pause.DelayWithReset(e.config.Clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			e.listFailed(ctx, source.Revealed(err))
		}
		return false, nil
	})
}

// mustAsk reports whether storage must be asked for its version now. The answer shows a
// restored backup, and an outage: etcd's client does not end a watch when the connection is
// lost. An outage that is over soon costs no request, but storage that nobody asks anything
// would count as lost. The dispatcher calls mustAsk once a second.
func (e *engine) mustAsk() bool {
	now, timeout := e.time.Now(), e.config.StorageTimeout
	switch silence, _, _ := e.health.outage(); {
	case now-e.askedAt >= historyInterval:
	case now-e.askedAt >= askInDoubt && e.health.unresponsive() && silence+time.Second >= min(timeout/2, askFirst):
	case now-e.askedAt >= askInDoubt && e.health.silence() >= min(timeout/2, askFirst) && e.health.readsWait():
	case now-e.askedAt >= timeout && e.health.silence() >= quietTimeouts*timeout:
	default:
		return false
	}
	e.askedAt = now
	return true
}

// ask asks storage for its version; askVersion notes the outcome.
func (e *engine) ask() {
	ctx, cancel := context.WithTimeout(e.ctx, askInDoubt)
	defer cancel()
	if _, err := e.askVersion(ctx, nil); err == nil {
		return
	}
	// A request that gets no answer does not say why.
	if s, ok := e.config.Storage.(capability.ConnectionChecker); ok {
		ctx, cancel := context.WithTimeout(e.ctx, askInDoubt)
		defer cancel()
		if err := s.CheckConnection(ctx); err != nil && e.ctx.Err() == nil {
			e.health.failed(e.time.Now(), err)
		}
	}
}

// currentVersion returns storage's version at some time after the call.
func (e *engine) currentVersion(ctx context.Context) (uint64, error) {
	version, err := e.versions.Current(ctx)
	return version.Current, err
}

// watchProgress reports whether storage reports the progress of the cache's watch now.
func (e *engine) watchProgress() bool { return e.saysItReports() && !e.progress.Silent() }

// saysItReports reports whether storage says that it reports progress. The process's
// checker of etcd's features is asked for etcd's own storage alone.
func (e *engine) saysItReports() bool {
	if e.config.WatchProgress != nil {
		return e.config.WatchProgress()
	}
	if s, ok := e.config.Storage.(capability.ProgressReporter); ok {
		return s.WatchProgress()
	}
	return isEtcds(e.config.Storage) && etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
}

// isEtcds reports whether a storage is k8s.io/apiserver's for etcd, whose type is not
// exported.
func isEtcds(s storage.Interface) bool {
	t := reflect.TypeOf(s)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.HasPrefix(t.PkgPath(), "k8s.io/apiserver/pkg/storage/etcd3")
}

// logSilence logs that storage answers and reports no progress, or that it reports again.
func (e *engine) logSilence(silent bool) {
	if !silent {
		e.log.Info("The storage reports progress again. The watch cache serves consistent reads", "resourceVersion", e.state.RV())
		return
	}
	err, remedy := errSilent, "look for a proxy that drops requests for the progress of watches, as etcd's grpc-proxy does; set WatchProgress for a storage that never reports any"
	if refused := e.progressFault.Load(); refused != nil {
		err, remedy = *refused, "look at the permissions of the server's user in the storage, and at proxies before it, for requests on the stream of a watch"
	}
	e.warn("silent", "The storage answers requests, but does not report the progress of its watch. The watch cache leaves consistent reads to the storage, and tries again now and then", err, remedy)
}

// openWatch returns storage's watch that is open, nil if none is.
func (e *engine) openWatch() freshness.Watch {
	if w := e.source.Current(); w != nil {
		return w
	}
	return nil
}

// indexFailed notes the failure of an indexer for the element with the key, for everySecond
// to log: the state's lock is held.
func (e *engine) indexFailed(name, key string, err error) {
	if e.failedIndex.Load() == nil {
		err = faultf(keyFaultf(err, "%q", key), "the index %q", name)
		e.failedIndex.CompareAndSwap(nil, &err)
	}
}

// undeliverable pauses the cache: storage has something that it can't deliver though
// it answers, most likely an object that can't be decoded. Watches end with an error,
// and new ones are refused. The log alone has storage's error: its text may quote the
// object, and watchers of other namespaces must not read it.
func (e *engine) undeliverable(err error) {
	e.metrics.Undeliverable()
	e.relists(metrics.RelistUndeliverable)
	e.readiness.pause(err)
	e.waiting.Pause(true)
	e.warn("undeliverable", summaryPaused, err, remedyOf(err, remedyObject))
	e.fanout.Fail(source.Failure(undeliverableStatus(err)))
}

// endPause ends a pause: storage was listed.
func (e *engine) endPause() {
	e.unlisted = 0
	e.fanout.ClearFailure()
	e.waiting.Pause(false)
	e.readiness.pause(nil)
}

// listFailed notes that storage could not be listed: storage is away, or it has
// something that can't be read. The text of the error does not decide: a storage that
// answers version requests and fails lists again and again is not away.
func (e *engine) listFailed(ctx context.Context, cause error) {
	err := faultf(cause, "listing the storage of %s", e.config.GroupResource)
	e.metrics.FillFailed()
	e.health.failed(e.time.Now(), cause)
	e.unlisted++
	if _, answers := e.source.Version(ctx); !answers || source.Expired(source.Failure(cause)) {
		e.unlisted = 0
	}
	broken := e.unlisted >= unlistedAfter
	e.readiness.failed(err, broken)
	switch {
	case broken && e.readiness.ready():
		e.undeliverable(err)
	case broken:
		e.metrics.Undeliverable()
		e.warn("undeliverable", "Storage cannot deliver its objects. The watch cache is not ready, and tries again", err, remedyOf(cause, remedyObject))
	case e.storageIsLost(), e.unlisted > 0:
		e.noteError("The storage could not be listed. The watch cache tries again", err)
	default:
		e.warn("list", "The storage could not be listed. The watch cache tries again", err, remedyOf(cause, remedyStorage))
	}
}

// watchBroke notes that a watch of storage ended and will be resumed.
func (e *engine) watchBroke(cause error) {
	e.metrics.WatchBroken()
	err := faultf(cause, "watching the storage of %s", e.config.GroupResource)
	e.readiness.failed(err, false)
	e.health.failed(e.time.Now(), cause)
	e.noteError("A watch of the storage ended. The watch cache resumes it", err)
}

// watchStaysBroken notes that watches of storage have failed for some time.
func (e *engine) watchStaysBroken(err error) {
	if !e.storageIsLost() { // otherwise the log has it, and watchBroke has noted the error
		e.warn("watch", "The storage cannot be watched. The watch cache goes on with what it has and tries again", err, remedyStorage)
	}
}

// watchHangs notes that a watch of storage is given up because it hangs.
func (e *engine) watchHangs(after time.Duration) {
	if suppressed, ok := e.errors.due("hangs", e.config.Clock.Now()); ok {
		klog.InfoS("The watch of the storage hangs: it is behind the storage and brings nothing. The watch cache opens another one",
			"resource", e.config.GroupResource, "resourceVersion", e.waiting.At(), "storageResourceVersion", e.versions.Highest(), "waited", after.Round(time.Millisecond), "suppressed", suppressed)
	}
}

// versionFailed notes a version request that has failed.
func (e *engine) versionFailed(err error) {
	if errors.Is(err, context.Canceled) || !e.health.refuses() {
		return
	}
	e.warn("version", "The storage answers, but its version can't be read. The watch cache can't serve consistent reads", err,
		"look at the permissions of the server's user in the storage, and at proxies before it, for reads of keys and transactions of reads")
}

// requestProgress asks storage for the progress of the cache's watch.
func (e *engine) requestProgress(ctx context.Context) error {
	err := e.source.RequestProgress(ctx)
	if e.progressFault.Store(nil); err != nil {
		e.progressFault.Store(&err)
	}
	return err
}

// storageIsLost reports whether the log has said that storage does not answer.
func (e *engine) storageIsLost() bool {
	_, _, lost := e.health.outage()
	return lost
}

func (e *engine) storageLost(silence time.Duration, err error) {
	goesOn := "the watch cache has no state yet and refuses most requests"
	if e.readiness.ready() {
		goesOn = "consistent reads fail; open watches, and reads at a resourceVersion, go on with what the watch cache has"
	}
	e.errors.add(summaryLost, publicText(err), e.config.Clock.Now())
	if caches, lost := e.noteOutage(true); lost == 1 {
		e.log.Error(withoutContent(err, e.config.ResourcePrefix), summaryLost+": "+goesOn,
			"silence", silence.Round(time.Second).String(), "resources", caches, "resourceVersion", e.state.RV(), "remedy", remedyStorage)
	}
}

func (e *engine) storageBack(silence time.Duration) {
	e.health.refusing.Store(0)
	if caches, lost := e.noteOutage(false); lost == 0 && caches > 0 {
		e.log.Info("The storage answers again", "silence", silence.Round(time.Second).String(), "resources", caches, "resourceVersion", e.state.RV())
	}
}

// outages records the caches that are awake, by server, and which of them have lost it. The
// first cache to lose a server and the last one to reach it again log that.
var outages = struct {
	sync.Mutex
	servers map[any]*outage
}{servers: make(map[any]*outage)}

// outage is the caches on one server: whether each has lost it, and how many have.
type outage struct {
	caches map[*engine]bool
	lost   int
}

// noteOutage notes whether the cache has lost its storage. It returns how many caches are
// on the same server, and how many of them have lost it.
func (e *engine) noteOutage(isLost bool) (caches, lost int) {
	key := any(e)
	if s, ok := e.config.Storage.(capability.ServerSharer); ok {
		key = s.Server()
	}
	outages.Lock()
	defer outages.Unlock()
	server := outages.servers[key]
	if server == nil {
		server = &outage{caches: make(map[*engine]bool)}
		outages.servers[key] = server
	}
	if server.caches[e] {
		server.lost--
	}
	if server.caches[e] = isLost; e.ctx.Err() != nil {
		delete(server.caches, e)
	}
	if server.caches[e] {
		server.lost++
	}
	if len(server.caches) == 0 {
		delete(outages.servers, key)
	}
	return len(server.caches), server.lost
}
