// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
)

const (
	// compactionInterval is the time between two looks at what storage has
	// compacted, historyInterval the time between two looks whether it still is
	// the same storage, when no read has asked for its version.
	compactionInterval = 15 * time.Second
	historyInterval    = time.Minute
	// quietTimeouts is after how many times StorageTimeout a storage that was not
	// heard of is asked whether it is there. A server has many quiet caches.
	quietTimeouts = 3
)

// reflect lists and watches storage, again and again with growing pauses,
// until the context is done.
func (e *engine) reflect(ctx context.Context, reflector *cache.Reflector) {
	pause := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 5 * time.Second}
	_ = pause.DelayWithReset(e.config.Clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			e.listFailed(ctx, err)
		}
		return false, nil
	})
}

// followStorage looks from time to time at what storage does not tell by itself:
// what it has compacted, whether it was restored from a backup, and whether it is
// still there. etcd's client does not tell a watch that the connection is lost.
// followStorage returns when the context is done.
func (e *engine) followStorage(ctx context.Context) {
	asked := e.config.Clock.Now()
	quiet := quietTimeouts * e.config.StorageTimeout
	compaction, silence := e.config.Clock.After(compactionInterval), e.config.Clock.After(quiet)
	for {
		select {
		case <-compaction:
			compaction = e.config.Clock.After(compactionInterval)
			e.lookAtCompaction()
			if now := e.config.Clock.Now(); now.Sub(asked) >= historyInterval {
				asked = now
				_, _ = e.currentVersion(ctx) // askVersion notes what is wrong
			}
		case <-silence:
			silence = e.config.Clock.After(quiet)
			if e.contact.silence() >= e.config.StorageTimeout {
				e.askOnce(ctx)
			}
		case <-e.contact.doubts:
			e.askUntilHeard(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// askUntilHeard asks storage for its version until storage is heard of, so that
// storage is not taken for lost because nobody asks it anything, and is known to be
// back soon after it is. A doubt that is over soon costs no request.
func (e *engine) askUntilHeard(ctx context.Context) {
	for pause := min(e.config.StorageTimeout/2, askFirst); ; pause = askInDoubt {
		select {
		case <-e.config.Clock.After(pause):
		case <-ctx.Done():
			return
		}
		if !e.contact.inDoubt() {
			return
		}
		e.askOnce(ctx)
	}
}

// askOnce asks storage for its version; askVersion notes what comes of it.
func (e *engine) askOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askInDoubt)
	defer cancel()
	_, _ = e.askVersion(ctx, nil)
}

// lookAtCompaction takes over what storage has compacted.
func (e *engine) lookAtCompaction() {
	if rv := e.config.Storage.CompactRevision(); rv > 0 {
		e.state.Compacted(uint64(rv))
	}
}

// currentVersion returns storage's version at some time after the call.
func (e *engine) currentVersion(ctx context.Context) (uint64, error) {
	version, err := e.versions.Current(ctx)
	return version.Current, err
}

// watchProgress reports whether storage reports the progress of the cache's watch
// at this time.
func (e *engine) watchProgress() bool {
	if e.config.WatchProgress != nil {
		return e.config.WatchProgress()
	}
	if s, ok := e.config.Storage.(interface{ WatchProgress() bool }); ok {
		return s.WatchProgress()
	}
	return etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
}

// openWatch returns storage's watch that is open, nil if none is.
func (e *engine) openWatch() fresh.Watch {
	if w := e.source.Current(); w != nil {
		return w
	}
	return nil
}

// watchHangs notes that a watch of storage is given up because it hangs.
func (e *engine) watchHangs(after time.Duration) {
	suppressed, due := e.warnings.due("hangs", e.config.Clock.Now())
	if !due {
		return
	}
	klog.InfoS("The watch of the storage hangs: it has not brought what the storage has. The watch cache opens another one",
		"resource", e.config.GroupResource, "resourceVersion", e.waiting.At(), "storage", e.versions.Highest(), "waited", after.Round(time.Millisecond), "suppressed", suppressed)
}
