// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// asleep is the value of users without an engine, or while it ends.
const asleep = -1

// sleeper is a cache with Config.LazyStart or Config.IdleTimeout. A request acquires and releases
// the engine, and starts one if necessary. The sleeper stops an engine that is idle for
// IdleTimeout. Writes and counts don't wake it. Only the holder of turn starts or stops an engine,
// so at most one runs.
type sleeper struct {
	wrapped
	config  *Config
	metrics *metrics.Resource
	errors  *errorLog
	ctx     context.Context // done after stop
	cancel  context.CancelFunc
	tasks   tasks.Group

	// awake is nil while the cache sleeps, and after stop the last engine, which refuses requests.
	awake atomic.Pointer[awakened]
	// users counts the calls that use the engine, or is asleep. Unused without IdleTimeout. Only
	// the holder of turn may set it to or from asleep.
	users atomic.Int64
	// used is true if users changed after followUse last looked. Set it before changing users.
	used atomic.Bool
	turn *semaphore.Weighted // of weight 1

	// estimates is true if storage estimates sizes, and stats are its last ones.
	estimates atomic.Bool
	stats     atomic.Pointer[storage.Stats]
}

// awakened is an engine. Requests wait for its state until warmUntil.
type awakened struct {
	*engine
	warmUntil time.Time
}

func newSleeper(config *Config, m *metrics.Resource, errors *errorLog) *sleeper {
	s := &sleeper{wrapped: config.Storage, config: config, metrics: m, errors: errors, turn: semaphore.NewWeighted(1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.users.Store(asleep)
	return s
}

// start starts the first engine of a cache without LazyStart.
func (s *sleeper) start() error {
	if err := s.estimateSizes(); err != nil {
		return err
	}
	s.use()
	s.users.Store(0)
	s.run(&awakened{engine: assemble(*s.config, s.metrics, s.errors)})
	return nil
}

// run starts an engine. Caller must hold turn.
func (s *sleeper) run(e *awakened) {
	e.start()
	if s.config.IdleTimeout != 0 {
		s.tasks.Run(func() { s.followUse(e) }) // ends with the engine; stop awaits it
	}
	s.awake.Store(e)
}

// acquire returns the engine, after starting it if necessary. It runs until release. If ctx is done
// first, acquire returns nil and the caller must not call release.
func (s *sleeper) acquire(ctx context.Context) *awakened {
	if s.config.IdleTimeout == 0 {
		if e := s.awake.Load(); e != nil {
			return e
		}
		return s.wake(ctx)
	}
	s.use()
	for {
		n := s.users.Load()
		if n == asleep {
			return s.wake(ctx)
		}
		if s.users.CompareAndSwap(n, n+1) {
			return s.awake.Load()
		}
	}
}

// release ends a use of the engine. IdleTimeout starts here.
func (s *sleeper) release() {
	if s.config.IdleTimeout != 0 {
		s.use()
		s.users.Add(-1)
	}
}

// use sets used. It reads first because many goroutines share it.
func (s *sleeper) use() {
	if !s.used.Load() {
		s.used.Store(true)
	}
}

// wake is acquire for a sleeping cache.
func (s *sleeper) wake(ctx context.Context) *awakened {
	if s.turn.Acquire(ctx, 1) != nil {
		return nil
	}
	defer s.turn.Release(1)
	if e := s.awake.Load(); e != nil {
		s.users.Add(1)
		return e
	}
	e := &awakened{engine: assemble(*s.config, s.metrics, s.errors)}
	if s.ctx.Err() != nil {
		e.stop() // it refuses every request
		s.awake.Store(e)
	} else {
		s.woken(ctx, e)
		s.run(e)
	}
	s.users.Store(1)
	return e
}

func (s *sleeper) woken(ctx context.Context, e *awakened) {
	e.warmUntil = s.config.Clock.Now().Add(s.config.FreshnessTimeout)
	s.metrics.WokenUp()
	e.journal.V(lifecycleLevel).Info("A request wakes the watch cache", "user", inLine(clientOf(ctx).User, clientText))
	if err := s.estimateSizes(); err != nil {
		e.journal.warn("sizes", "Object sizes can't be estimated. The watch cache reports the number of objects only", err,
			"do not enable a size estimator on the storage below the cache, or set DisableSizeEstimation")
	}
}

func (s *sleeper) warm(ctx context.Context, e *awakened) {
	if e.Ready() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.warmUntil.Sub(s.config.Clock.Now()))
	defer cancel()
	_ = e.Wait(ctx)
}

func (s *sleeper) followUse(e *awakened) {
	for {
		select {
		case <-s.config.Clock.After(s.config.IdleTimeout):
		case <-s.ctx.Done():
			return
		}
		if s.busy(e) {
			continue
		}
		s.rememberStats()
		if s.endIdle(e) {
			return
		}
	}
}

// busy reports whether the cache is in use, or was since the last call.
func (s *sleeper) busy(e *awakened) bool {
	used := s.used.Swap(false)
	if e.fanout.Watched() {
		s.used.Store(true)
		return true
	}
	return used || s.users.Load() > 0
}

// endIdle stops the engine if it has no users, and reports whether it did.
func (s *sleeper) endIdle(e *awakened) bool {
	_ = s.turn.Acquire(context.Background(), 1)
	defer s.turn.Release(1)
	if s.ctx.Err() != nil || !s.users.CompareAndSwap(0, asleep) {
		return false
	}
	// No request can acquire the engine now. Requests since busy have ended or left an open watch;
	// both count as a use.
	if s.used.Load() || e.fanout.Watched() {
		s.users.Store(0)
		return false
	}
	s.awake.Store(nil)
	e.stop()
	s.metrics.FellAsleep()
	e.journal.V(lifecycleLevel).Info("The watch cache fell asleep after its idle timeout. The next request wakes it",
		"idleTimeout", s.config.IdleTimeout.String())
	return true
}

// stop is final. It awaits the engine and followUse.
func (s *sleeper) stop() {
	s.cancel()
	_ = s.turn.Acquire(context.Background(), 1)
	e := s.awake.Load()
	s.turn.Release(1)
	if e != nil {
		e.stop()
	}
	s.tasks.Close()
}

// Done implements running.
func (s *sleeper) Done() <-chan struct{} { return s.ctx.Done() }

// Get implements storage.Interface.
func (s *sleeper) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	e := s.acquire(ctx)
	if e == nil {
		return ctx.Err()
	}
	defer s.release()
	return e.Get(ctx, key, opts, into)
}

// GetList implements storage.Interface. LISTs that storage may answer don't wait.
func (s *sleeper) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	e := s.acquire(ctx)
	if e == nil {
		return ctx.Err()
	}
	defer s.release()
	if opts.Predicate.Limit == 0 || !match.IsEmpty(opts.Predicate) {
		s.warm(ctx, e)
	}
	return e.GetList(ctx, key, opts, into)
}

// Watch implements storage.Interface.
func (s *sleeper) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	e := s.acquire(ctx)
	if e == nil {
		return nil, ctx.Err()
	}
	defer s.release()
	s.warm(ctx, e)
	return e.Watch(ctx, key, opts)
}

// GuaranteedUpdate implements storage.Interface.
func (s *sleeper) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	var target storage.Interface = s.wrapped
	if e := s.awake.Load(); e != nil {
		target = e
	}
	return target.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, suggestion)
}

// Wait implements running.
func (s *sleeper) Wait(ctx context.Context) error {
	e := s.acquire(ctx)
	if e == nil {
		return ctx.Err()
	}
	defer s.release()
	return e.Wait(ctx)
}

// Ready implements running. It is true while the cache sleeps.
func (s *sleeper) Ready() bool { return s.ReadinessCheck() == nil }

// ReadinessCheck implements storage.Interface.
func (s *sleeper) ReadinessCheck() error {
	if e := s.awake.Load(); e != nil {
		return e.ReadinessCheck()
	}
	if s.ctx.Err() != nil {
		return storage.ErrStorageNotReady
	}
	return nil
}

// Bookmark implements running. It does nothing while the cache sleeps.
func (s *sleeper) Bookmark(ctx context.Context) error {
	if e := s.awake.Load(); e != nil {
		return e.Bookmark(ctx)
	}
	return nil
}

func (s *sleeper) status(q status.Query) Status {
	if e := s.awake.Load(); e != nil {
		return e.status(q)
	}
	return Status{Asleep: true, Ready: s.Ready(), Watchers: []status.Watcher{}}
}

// Stats implements storage.Interface. As servers call it periodically, it returns the last known
// stats instead of waking the cache.
func (s *sleeper) Stats(ctx context.Context) (storage.Stats, error) {
	if s.awake.Load() == nil && s.ctx.Err() == nil && s.estimates.Load() {
		if last := s.stats.Load(); last != nil {
			return *last, nil
		}
		return storage.Stats{}, errStatsUnknown
	}
	stats, err := s.wrapped.Stats(ctx)
	if err == nil {
		s.stats.Store(&stats)
	}
	return stats, err
}

// rememberStats updates stats before the cache sleeps.
func (s *sleeper) rememberStats() {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.FreshnessTimeout)
	defer cancel()
	_, _ = s.Stats(ctx)
}

func (s *sleeper) estimateSizes() error {
	if s.config.DisableSizeEstimation || s.estimates.Swap(true) {
		return nil
	}
	return estimateSizes(s.config, s.keys)
}

func (s *sleeper) keys(ctx context.Context) ([]string, error) {
	if e := s.awake.Load(); e != nil {
		return e.keys(ctx)
	}
	return nil, nil
}
