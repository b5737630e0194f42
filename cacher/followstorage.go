// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"
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

// follower connects a cache to its storage. It lists and watches it, requests versions and
// progress, and hands what storage does to the condition.
type follower struct {
	*base
	source *source.Source
	reads  boundedReads
	// progressFault is the error of the last request for progress, or nil.
	progressFault atomic.Pointer[error]
	probing       atomic.Bool
	// probedAt is when mustProbe was last true, on the timeline. Owned by the dispatcher goroutine.
	probedAt time.Duration
	// listBegan is when the last list of the storage began, and rvSeenAt when storage last
	// reported its resourceVersion, both on the timeline.
	listBegan, rvSeenAt atomic.Int64
}

// reflect lists and watches storage, with growing pauses after failures.
func (f *follower) reflect(ctx context.Context, reflector *cache.Reflector) {
	pause := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 5 * time.Second}
	_ = pause.DelayWithReset(f.config.Clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			f.listFailed(ctx, source.Unredact(err))
		}
		return false, nil
	})
}

// mustProbe reports whether to request storage's version now, to detect a restored backup or an
// outage: etcd's client does not end a watch when it loses the connection. The dispatcher calls it
// once a second.
func (f *follower) mustProbe() bool {
	c := f.condition.load()
	now := f.time.Now()
	timeout := f.config.StorageTimeout
	delay := min(timeout/2, probeDelay)
	switch since := now - f.probedAt; {
	case since >= historyInterval:
	case since >= probeInterval && c.contact != answering && now-c.outageSince+time.Second >= delay:
	case since >= probeInterval && f.condition.silence() >= delay && f.reads.waits():
	case since >= timeout && f.condition.silence() >= quietTimeouts*timeout:
	default:
		return false
	}
	f.probedAt = now
	return true
}

// probe requests storage's version. requestVersion handles the result.
func (f *follower) probe() {
	ctx, cancel := context.WithTimeout(f.ctx, probeInterval)
	defer cancel()
	if _, err := f.requestVersion(ctx, nil); err == nil {
		return
	}
	// A timeout does not show the cause.
	if s, ok := f.config.Storage.(capability.ConnectionChecker); ok {
		ctx, cancel := context.WithTimeout(f.ctx, probeInterval)
		defer cancel()
		if err := s.CheckConnection(ctx); err != nil && f.ctx.Err() == nil {
			f.condition.handle(event{kind: requestFailed, asked: f.time.Now(), cause: err})
		}
	}
}

// requestVersion requests storage's version, and those of keys if possible. A version below that of the
// cache at the start of the request implies that storage was restored from a backup.
func (f *follower) requestVersion(ctx context.Context, keys []string) (answer freshness.Answer, err error) {
	began := f.condition.load()
	reached, asked := f.state.RV(), f.time.Now()
	f.metrics.VersionRequest()
	if s, ok := f.config.Storage.(capability.KeyVersioner); ok && len(keys) > 0 {
		answer.Keys, answer.Current, err = s.KeyVersions(ctx, keys)
		if err == nil && len(answer.Keys) != len(keys) {
			err = faultf(nil, "the storage of %s has returned %d resourceVersions for %d keys", f.config.GroupResource, len(answer.Keys), len(keys))
		}
	} else {
		answer.Current, err = f.config.Storage.GetCurrentResourceVersion(ctx)
	}
	if err != nil {
		f.condition.handle(event{kind: versionFailed, asked: asked, cause: err})
		return freshness.Answer{}, errNoVersion
	}
	f.condition.heard()
	if f.condition.load().refusedSince != 0 {
		f.condition.handle(event{kind: versionRead})
	}
	f.source.HasAnswered()
	if answer.Current >= reached {
		f.versions.Told(answer.Current)
		f.rvSeenAt.Store(int64(f.time.Now()))
		return answer, nil
	}
	err = faultf(nil, "the storage of %s is at resourceVersion %d, it was at %d before", f.config.GroupResource, answer.Current, reached)
	if before, _ := f.condition.handle(event{kind: restored, began: began, err: err}); before.lists != began.lists {
		return freshness.Answer{}, errNoVersion
	}
	return freshness.Answer{}, refusedError(err.Error(), freshness.RetrySeconds)
}

// currentVersion returns storage's version as of some time after the call.
func (f *follower) currentVersion(ctx context.Context) (uint64, error) {
	version, err := f.versions.Current(ctx)
	return version.Current, err
}

// watchProgress reports whether storage currently reports progress.
func (f *follower) watchProgress() bool { return f.ReportsProgress() && !f.condition.load().silent }

// ReportsProgress reports whether storage should report progress. We only use the process-wide
// checker of etcd's features for k8s.io/apiserver's etcd storage.
func (f *follower) ReportsProgress() bool {
	if f.config.WatchProgress != nil {
		return f.config.WatchProgress()
	}
	if s, ok := f.config.Storage.(capability.ProgressReporter); ok {
		return s.WatchProgress()
	}
	return isEtcds(f.config.Storage) && etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
}

// isEtcds recognizes k8s.io/apiserver's etcd storage, whose type is not exported.
func isEtcds(s storage.Interface) bool {
	t := reflect.TypeOf(s)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.HasPrefix(t.PkgPath(), "k8s.io/apiserver/pkg/storage/etcd3")
}

func (f *follower) CurrentWatch() freshness.Watch {
	if w := f.source.Current(); w != nil {
		return w
	}
	return nil
}

func (f *follower) ListStarts() source.InitialState {
	f.listBegan.Store(int64(f.time.Now()))
	return newLoader(&f.tasks, newElementBuilder(f.base))
}

// Undeliverable implements source.Owner. Most likely storage can't decode an object, which the
// error may quote, so clients must not see it.
func (f *follower) Undeliverable(err error) { f.condition.handle(event{kind: undeliverable, err: err}) }

func (f *follower) WatchLost(cause metrics.RelistCause) {
	f.condition.handle(event{kind: listNeeded, relist: cause})
}

func (f *follower) listFailed(ctx context.Context, cause error) {
	f.metrics.FillFailed()
	failed := f.time.Now()
	_, answers := f.source.Version(ctx)
	if answers {
		f.condition.heard()
	}
	f.condition.handle(event{
		kind: listFailed, err: faultf(cause, "listing the storage of %s", f.config.GroupResource), cause: cause,
		asked: failed, answers: answers, expired: source.Expired(cause),
	})
}

func (f *follower) WatchFailed(cause error, down bool) {
	f.metrics.WatchBroken()
	f.condition.handle(event{
		kind: watchBroke, err: faultf(cause, "watching the storage of %s", f.config.GroupResource), cause: cause,
		asked: f.time.Now(),
	})
	if down && f.condition.load().contact != lost { // an outage has its own line
		f.journal.warn("watch", "Storage cannot be watched. The watch cache keeps its state and retries", cause, remedyStorage)
	}
}

func (f *follower) ProbeProgress(ctx context.Context) bool { return f.source.Reports(ctx) }

func (f *follower) WatchHung(after time.Duration) {
	if suppressed, ok := f.journal.errors.due("hangs", f.config.Clock.Now()); ok {
		klog.InfoS("The storage watch hangs: it is behind storage and delivers nothing. The watch cache opens another one",
			"resource", f.config.GroupResource, "resourceVersion", f.waiting.At(), "storageResourceVersion", f.versions.Highest(), "waited", after.Round(time.Millisecond), "suppressed", suppressed)
	}
}

func (f *follower) RequestProgress(ctx context.Context) error {
	err := f.source.RequestProgress(ctx)
	f.progressFault.Store(nil)
	if err != nil {
		f.progressFault.Store(&err)
	}
	return err
}

// Silent implements freshness.Silence.
func (f *follower) Silent() bool { return f.condition.load().silent }

// SetSilent implements freshness.Silence.
func (f *follower) SetSilent(silent bool) {
	ev := event{kind: reports}
	if silent {
		ev.kind = fellSilent
		if refused := f.progressFault.Load(); refused != nil {
			ev.err = *refused
		}
	}
	f.condition.handle(ev)
}
