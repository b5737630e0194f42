// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
)

// asleep is the number of users of a cache that has no engine, or is about to
// have none.
const asleep = -1

// lifecycle keeps the engine of a cache: a request that needs one starts it, and
// an engine that was idle for the idle timeout is ended. Each request that uses the
// engine acquires it, and releases it at its end.
//
// An engine is started and ended in turn: whoever needs that waits for the turn, or until
// its context is done. So there is at most one engine at a time.
type lifecycle struct {
	of *Cacher
	// ctx ends when stop is called, and tasks has the follower of use.
	ctx    context.Context
	cancel context.CancelFunc
	tasks  tasks.Group

	// engine is nil while the cache sleeps. Once the cache is stopped it is the
	// last engine, which refuses every request.
	engine atomic.Pointer[engine]
	// users is how many calls use the engine now, or asleep; without an idle timeout
	// the number means nothing. Only who has the turn changes users from and to asleep.
	users atomic.Int64
	// used: a user has come or gone since the follower of use last looked. It is set
	// before users changes.
	used atomic.Bool

	turn *semaphore.Weighted // of one goroutine at a time
	// stopped: stop was called. Who has the turn may read and set it.
	stopped bool
}

func newLifecycle(of *Cacher) *lifecycle {
	l := &lifecycle{of: of, turn: semaphore.NewWeighted(1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.users.Store(asleep)
	return l
}

// current returns the engine, nil while the cache sleeps. The engine may end at any time.
func (l *lifecycle) current() *engine { return l.engine.Load() }

// acquire returns the engine, after starting one if there is none. The engine stays
// until release is called. If ctx ends before there is one, acquire returns nil, and release
// must not be called.
func (l *lifecycle) acquire(ctx context.Context) *engine {
	if l.of.config.IdleTimeout == 0 {
		if e := l.engine.Load(); e != nil {
			return e
		}
		return l.wake(ctx)
	}
	l.use()
	for {
		n := l.users.Load()
		if n == asleep {
			return l.wake(ctx)
		}
		if l.users.CompareAndSwap(n, n+1) {
			return l.engine.Load()
		}
	}
}

// release ends the use of an engine. The idle timeout counts from here.
func (l *lifecycle) release() {
	if l.of.config.IdleTimeout != 0 {
		l.use()
		l.users.Add(-1)
	}
}

// use notes that the cache is used. Many goroutines read the note: it is written once.
func (l *lifecycle) use() {
	if !l.used.Load() {
		l.used.Store(true)
	}
}

// wake returns the engine as acquire does.
func (l *lifecycle) wake(ctx context.Context) *engine {
	if l.turn.Acquire(ctx, 1) != nil {
		return nil
	}
	defer l.turn.Release(1)
	if e := l.engine.Load(); e != nil {
		l.users.Add(1)
		return e
	}
	var e *engine
	if l.ctx.Err() != nil { // an engine that refuses every request
		e = assemble(l.of.config, l.of.metrics, &l.of.errors)
		e.stop()
	} else if e = l.of.startEngine(ctx); l.of.config.IdleTimeout != 0 {
		// Ends when it has put the cache to sleep, or with stop, which awaits it.
		l.tasks.Run(func() { l.followUse(e) })
	}
	l.engine.Store(e)
	l.users.Store(1)
	return e
}

// followUse puts the cache to sleep once nobody has used it for the idle timeout.
func (l *lifecycle) followUse(e *engine) {
	for {
		select {
		case <-l.of.config.Clock.After(l.of.config.IdleTimeout):
		case <-l.ctx.Done():
			return
		}
		if l.busy(e) {
			continue
		}
		l.of.rememberStats(l.ctx)
		if l.endIdle(e) {
			return
		}
	}
}

// busy reports whether the cache is in use, or was since busy was last called.
func (l *lifecycle) busy(e *engine) bool {
	used := l.used.Swap(false)
	if e.fanout.Watched() {
		l.used.Store(true)
		return true
	}
	return used || l.users.Load() > 0
}

// endIdle ends the engine if nobody uses it, and reports whether it did.
func (l *lifecycle) endIdle(e *engine) bool {
	_ = l.turn.Acquire(context.Background(), 1)
	defer l.turn.Release(1)
	if l.ctx.Err() != nil || !l.users.CompareAndSwap(0, asleep) {
		return false
	}
	// Nobody can acquire the engine any more. Users who came since the cache was found
	// idle have opened a watch, or are gone; both is a use.
	if l.used.Load() || e.fanout.Watched() {
		l.users.Store(0)
		return false
	}
	l.engine.Store(nil)
	e.stop()
	l.of.slept()
	return true
}

// stop is final: no engine is started any more, the last one is ended, and so is
// everything that the lifecycle has started. It returns true to the first caller.
func (l *lifecycle) stop() (first bool) {
	l.cancel()
	_ = l.turn.Acquire(context.Background(), 1)
	first, l.stopped = !l.stopped, true
	e := l.engine.Load()
	l.turn.Release(1)
	if e != nil {
		e.stop()
	}
	l.tasks.Close()
	return first
}
