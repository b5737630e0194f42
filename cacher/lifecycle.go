// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
)

// asleep is the number of users of a cache that has no engine, or is about to
// have none.
const asleep = -1

// lifecycle keeps the engine of a cache: a request that needs one starts it, and
// an engine that was idle for the idle timeout is ended. Each request that uses the
// engine acquires it, and releases it at its end.
//
// An engine is started and ended without any lock held: while one goroutine does
// so, mu.changing is set, and everyone else who needs that waits for the channel to
// be closed. So there is at most one engine at a time.
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
	// nobody counts. Only the goroutine that has set mu.changing changes users from
	// and to asleep.
	users atomic.Int64
	// used: a user has come or gone since the follower of use last looked. It is set
	// before users changes.
	used atomic.Bool

	mu struct {
		sync.Mutex
		stopped bool
		// changing is closed at the end of the start or the end of an engine; nil: none
		// is under way.
		changing chan struct{}
	}
}

func newLifecycle(of *Cacher) *lifecycle {
	l := &lifecycle{of: of}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.users.Store(asleep)
	return l
}

// current returns the engine, nil while the cache sleeps. The engine may end at any time.
func (l *lifecycle) current() *engine { return l.engine.Load() }

// acquire returns the engine, after starting one if there is none. The engine stays
// until release is called. If ctx ends while another goroutine starts or ends an
// engine, acquire returns nil, and release must not be called.
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

// begin starts an engine before any request needs it.
func (l *lifecycle) begin() {
	if l.wake(l.ctx) != nil {
		l.release()
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
	if !l.lockUnchanging(ctx) {
		return nil
	}
	if e := l.engine.Load(); e != nil {
		l.users.Add(1)
		l.mu.Unlock()
		return e
	}
	stopped := l.mu.stopped
	l.beginChange()
	l.mu.Unlock()

	var e *engine
	defer func() {
		l.mu.Lock()
		if e != nil { // start has not panicked
			l.engine.Store(e)
			l.users.Store(1)
		}
		l.endChange()
		l.mu.Unlock()
	}()
	if stopped {
		e = l.of.stoppedEngine()
		return e
	}
	started := l.of.startEngine(ctx)
	if l.of.config.IdleTimeout != 0 {
		// Ends when it has put the cache to sleep, or with stop, which awaits it.
		l.tasks.Run(func() { l.followUse(started) })
	}
	e = started
	return e
}

// lockUnchanging takes mu while no engine starts or ends. It returns false, without
// mu, if the context ends before.
func (l *lifecycle) lockUnchanging(ctx context.Context) bool {
	l.mu.Lock()
	for l.mu.changing != nil {
		changing := l.mu.changing
		l.mu.Unlock()
		select {
		case <-changing:
		case <-ctx.Done():
			return false
		}
		l.mu.Lock()
	}
	return true
}

// beginChange and endChange are called with mu held.
func (l *lifecycle) beginChange() { l.mu.changing = make(chan struct{}) }

func (l *lifecycle) endChange() {
	close(l.mu.changing)
	l.mu.changing = nil
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
	l.lockUnchanging(context.Background())
	if l.mu.stopped || !l.users.CompareAndSwap(0, asleep) {
		l.mu.Unlock()
		return false
	}
	l.beginChange()
	l.mu.Unlock()

	// Nobody can acquire the engine any more. Users who came since the cache was found
	// idle have opened a watch, or are gone; both is a use.
	ends := !l.used.Load() && !e.fanout.Watched()
	if ends {
		l.engine.Store(nil)
		e.stop()
		l.of.slept()
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if !ends {
		l.users.Store(0)
	}
	l.endChange()
	return ends
}

// stop is final: no engine is started any more, the last one is ended, and so is
// everything that the lifecycle has started. It returns true to the first caller.
func (l *lifecycle) stop() (first bool) {
	l.cancel()
	l.mu.Lock()
	first = !l.mu.stopped
	l.mu.stopped = true
	l.mu.Unlock()
	l.lockUnchanging(context.Background())
	e := l.engine.Load()
	l.mu.Unlock()
	if e != nil {
		e.stop()
	}
	l.tasks.Close()
	return first
}
