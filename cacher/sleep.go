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

// asleep is the number of users of a sleeper that has no engine, or is about to end it.
const asleep = -1

// sleeper is a cache with Config.LazyStart or Config.IdleTimeout: a request that needs an
// engine starts one, and the sleeper ends an engine that was idle for the idle timeout.
// Each request acquires the engine and releases it. Writes and counting don't wake.
//
// Only the holder of turn starts or ends an engine, so there is at most one at a time. A
// request waits for the turn until its context is done.
type sleeper struct {
	wrapped
	config  *Config
	metrics *metrics.Resource
	errors  *errorLog
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	tasks   tasks.Group // followUse

	// awake is nil while the cache sleeps. After stop it is the last engine, which
	// refuses every request.
	awake atomic.Pointer[awakened]
	// users is the number of calls that use the engine, or asleep. It means nothing
	// without an idle timeout. Only the holder of turn may set it to or from asleep.
	users atomic.Int64
	// used reports whether a user came or went since followUse last looked. It is set
	// before users changes.
	used atomic.Bool
	turn *semaphore.Weighted // of weight 1

	// estimates reports whether storage estimates sizes, and stats are its last ones,
	// for while the cache sleeps.
	estimates atomic.Bool
	stats     atomic.Pointer[storage.Stats]
}

// awakened is an engine, and the deadline until which requests wait for its state because
// a request started it.
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

// start starts the first engine of a cache that does not start lazily. Caller must not
// have passed on the sleeper yet.
func (s *sleeper) start() error {
	if err := s.estimateSizes(); err != nil {
		return err
	}
	s.use()
	s.users.Store(0)
	s.run(&awakened{engine: assemble(*s.config, s.metrics, s.errors)})
	return nil
}

// run starts an engine, and followUse if the cache may fall asleep. Caller must have the
// turn.
func (s *sleeper) run(e *awakened) {
	e.start()
	if s.config.IdleTimeout != 0 {
		s.tasks.Run(func() { s.followUse(e) }) // ends with the engine, and stop awaits it
	}
	s.awake.Store(e)
}

// acquire returns the engine, after starting one if there is none. The engine stays
// until release. If ctx ends first, acquire returns nil and the caller must not release.
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

// release ends the use of an engine. The idle timeout counts from here.
func (s *sleeper) release() {
	if s.config.IdleTimeout != 0 {
		s.use()
		s.users.Add(-1)
	}
}

// use notes that the cache is used. Many goroutines read the note, so it is written once.
func (s *sleeper) use() {
	if !s.used.Load() {
		s.used.Store(true)
	}
}

// wake returns the engine as acquire does.
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

// woken prepares an engine that a request starts.
func (s *sleeper) woken(ctx context.Context, e *awakened) {
	e.warmUntil = s.config.Clock.Now().Add(s.config.FreshnessTimeout)
	s.metrics.WokenUp()
	e.log.V(lifecycleLevel).Info("A request wakes the watch cache", "user", inLine(clientOf(ctx).User, clientText))
	if err := s.estimateSizes(); err != nil {
		e.warn("sizes", "Object sizes can't be estimated. The watch cache reports the number of objects only", err,
			"do not enable a size estimator on the storage below the cache, or set DisableSizeEstimation")
	}
}

// warm waits for the state of an engine that a request just started.
func (s *sleeper) warm(ctx context.Context, e *awakened) {
	if e.Ready() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.warmUntil.Sub(s.config.Clock.Now()))
	defer cancel()
	_ = e.Wait(ctx)
}

// followUse ends the engine once it was idle for the idle timeout.
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

// busy reports whether the cache is in use, or was since busy was last called.
func (s *sleeper) busy(e *awakened) bool {
	used := s.used.Swap(false)
	if e.fanout.Watched() {
		s.used.Store(true)
		return true
	}
	return used || s.users.Load() > 0
}

// endIdle ends the engine if it has no users, and reports whether it did.
func (s *sleeper) endIdle(e *awakened) bool {
	_ = s.turn.Acquire(context.Background(), 1)
	defer s.turn.Release(1)
	if s.ctx.Err() != nil || !s.users.CompareAndSwap(0, asleep) {
		return false
	}
	// Requests can't acquire the engine now. Those that came since the cache was found
	// idle have opened a watch, or are gone; both is a use.
	if s.used.Load() || e.fanout.Watched() {
		s.users.Store(0)
		return false
	}
	s.awake.Store(nil)
	e.stop()
	s.metrics.FellAsleep()
	e.log.V(lifecycleLevel).Info("The watch cache fell asleep after its idle timeout. The next request wakes it",
		"idleTimeout", s.config.IdleTimeout.String())
	return true
}

// stop is final. It ends the engine and followUse, and awaits them.
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

// Done is closed by stop.
func (s *sleeper) Done() <-chan struct{} { return s.ctx.Done() }

// Get implements storage.Interface. Storage answers while the state is not there.
func (s *sleeper) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	e := s.acquire(ctx)
	if e == nil {
		return ctx.Err()
	}
	defer s.release()
	return e.Get(ctx, key, opts, into)
}

// GetList implements storage.Interface. Storage answers LISTs with a limit and no selector
// while the state is not there.
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

// Wait waits for the state, and wakes the cache.
func (s *sleeper) Wait(ctx context.Context) error {
	e := s.acquire(ctx)
	if e == nil {
		return ctx.Err()
	}
	defer s.release()
	return e.Wait(ctx)
}

// Ready is true while the cache sleeps: a request will wake it.
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

// Bookmark sends nothing while the cache sleeps.
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

// Stats implements storage.Interface. A server calls it periodically, so a sleeping
// cache returns the last known stats.
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

// rememberStats updates the stats before the cache falls asleep. If storage fails, the
// last ones stay.
func (s *sleeper) rememberStats() {
	ctx, cancel := context.WithTimeout(s.ctx, s.config.FreshnessTimeout)
	defer cancel()
	_, _ = s.Stats(ctx)
}

// estimateSizes calls the function of the same name once.
func (s *sleeper) estimateSizes() error {
	if s.config.DisableSizeEstimation || s.estimates.Swap(true) {
		return nil
	}
	return estimateSizes(s.config, s.keys)
}

// keys returns none while the cache sleeps.
func (s *sleeper) keys(ctx context.Context) ([]string, error) {
	if e := s.awake.Load(); e != nil {
		return e.keys(ctx)
	}
	return nil, nil
}
