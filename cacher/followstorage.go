// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
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
	// historyInterval is the maximum time between two version requests, which detect a restored
	// backup.
	historyInterval = time.Minute
	// quietTimeouts times StorageTimeout is the silence after which the cache requests storage's
	// version. Servers have many quiet caches.
	quietTimeouts = 3
	// probeDelay is the maximum time from a failed request to the first probe, probeInterval that
	// between probes.
	probeDelay    = 5 * time.Second
	probeInterval = 2 * time.Second
)

// reflect lists and watches storage, with growing pauses after failures.
func (e *engine) reflect(ctx context.Context, reflector *cache.Reflector) {
	pause := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 5 * time.Second}
	_ = pause.DelayWithReset(e.config.Clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			e.listFailed(ctx, source.Unredact(err))
		}
		return false, nil
	})
}

// mustProbe reports whether to request storage's version now, to detect a restored backup or an
// outage: etcd's client does not end a watch when it loses the connection. The dispatcher calls it
// once a second.
func (e *engine) mustProbe() bool {
	c := e.condition.load()
	now := e.time.Now()
	timeout := e.config.StorageTimeout
	delay := min(timeout/2, probeDelay)
	switch since := now - e.probedAt; {
	case since >= historyInterval:
	case since >= probeInterval && c.contact != answering && now-c.outageSince+time.Second >= delay:
	case since >= probeInterval && e.silence() >= delay && e.reads.waits():
	case since >= timeout && e.silence() >= quietTimeouts*timeout:
	default:
		return false
	}
	e.probedAt = now
	return true
}

// probe requests storage's version. askVersion handles the result.
func (e *engine) probe() {
	ctx, cancel := context.WithTimeout(e.ctx, probeInterval)
	defer cancel()
	if _, err := e.askVersion(ctx, nil); err == nil {
		return
	}
	// A timeout does not show the cause.
	if s, ok := e.config.Storage.(capability.ConnectionChecker); ok {
		ctx, cancel := context.WithTimeout(e.ctx, probeInterval)
		defer cancel()
		if err := s.CheckConnection(ctx); err != nil && e.ctx.Err() == nil {
			e.handle(event{kind: requestFailed, asked: e.time.Now(), cause: err})
		}
	}
}

// currentVersion returns storage's version as of some time after the call.
func (e *engine) currentVersion(ctx context.Context) (uint64, error) {
	version, err := e.versions.Current(ctx)
	return version.Current, err
}

// watchProgress reports whether storage currently reports progress.
func (e *engine) watchProgress() bool { return e.ReportsProgress() && !e.condition.load().silent }

// ReportsProgress reports whether storage should report progress. We only use the process-wide
// checker of etcd's features for k8s.io/apiserver's etcd storage.
func (e *engine) ReportsProgress() bool {
	if e.config.WatchProgress != nil {
		return e.config.WatchProgress()
	}
	if s, ok := e.config.Storage.(capability.ProgressReporter); ok {
		return s.WatchProgress()
	}
	return isEtcds(e.config.Storage) && etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
}

// isEtcds recognizes k8s.io/apiserver's etcd storage, whose type is not exported.
func isEtcds(s storage.Interface) bool {
	t := reflect.TypeOf(s)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.HasPrefix(t.PkgPath(), "k8s.io/apiserver/pkg/storage/etcd3")
}

func (e *engine) CurrentWatch() freshness.Watch {
	if w := e.source.Current(); w != nil {
		return w
	}
	return nil
}

// indexFailed records an indexer's failure, for everySecond to log. Caller holds the state's lock.
func (e *engine) indexFailed(name, key string, err error) {
	if e.failedIndex.Load() == nil {
		err = faultf(keyFaultf(err, "%q", key), "the index %q", name)
		e.failedIndex.CompareAndSwap(nil, &err)
	}
}

func (e *engine) ListStarts() source.InitialState {
	e.listBegan.Store(int64(e.time.Now()))
	return newLoader(&e.tasks, e.newBuilder)
}

// Undeliverable implements source.Owner. Most likely storage can't decode an object, which the
// error may quote, so clients must not see it.
func (e *engine) Undeliverable(err error) { e.handle(event{kind: undeliverable, err: err}) }

func (e *engine) WatchLost(cause metrics.RelistCause) {
	e.handle(event{kind: listNeeded, relist: cause})
}

func (e *engine) listFailed(ctx context.Context, cause error) {
	e.metrics.FillFailed()
	failed := e.time.Now()
	_, answers := e.source.Version(ctx)
	if answers {
		e.heard()
	}
	e.handle(event{
		kind: listFailed, err: faultf(cause, "listing the storage of %s", e.config.GroupResource), cause: cause,
		asked: failed, answers: answers, expired: source.Expired(cause),
	})
}

func (e *engine) WatchFailed(cause error, down bool) {
	e.metrics.WatchBroken()
	e.handle(event{
		kind: watchBroke, err: faultf(cause, "watching the storage of %s", e.config.GroupResource), cause: cause,
		asked: e.time.Now(),
	})
	if down && e.condition.load().contact != lost { // an outage has its own line
		e.warn("watch", "Storage cannot be watched. The watch cache keeps its state and retries", cause, remedyStorage)
	}
}

func (e *engine) ProbeProgress(ctx context.Context) bool { return e.source.Reports(ctx) }

func (e *engine) WatchHung(after time.Duration) {
	if suppressed, ok := e.errors.due("hangs", e.config.Clock.Now()); ok {
		klog.InfoS("The storage watch hangs: it is behind storage and delivers nothing. The watch cache opens another one",
			"resource", e.config.GroupResource, "resourceVersion", e.waiting.At(), "storageResourceVersion", e.versions.Highest(), "waited", after.Round(time.Millisecond), "suppressed", suppressed)
	}
}

func (e *engine) RequestProgress(ctx context.Context) error {
	err := e.source.RequestProgress(ctx)
	e.progressFault.Store(nil)
	if err != nil {
		e.progressFault.Store(&err)
	}
	return err
}

// outages records each server's awake caches, and which of them lost it. We log the first loss and
// the last recovery.
var outages = struct {
	sync.Mutex
	servers map[any]*outage
}{servers: make(map[any]*outage)}

// outage maps a server's caches to whether they lost it, and counts the losses.
type outage struct {
	caches map[*engine]bool
	lost   int
}

// noteOutage updates outages. It returns the number of caches on the same server, and how many lost
// it.
func (e *engine) noteOutage() (caches, away int) {
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
	server.caches[e] = e.condition.load().contact == lost
	if e.ctx.Err() != nil {
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
