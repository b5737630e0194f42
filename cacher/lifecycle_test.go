// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// fakeEngine is what the lifecycle of these tests starts and ends.
type fakeEngine struct {
	number  int32
	refuses bool
}

// engines makes fake engines, and checks that no more than one runs.
type engines struct {
	t         *testing.T
	lifecycle *lifecycle[fakeEngine]

	made, ended, slept atomic.Int32
	running            atomic.Pointer[fakeEngine]
	watches            atomic.Bool
	// Each is called, if it is set, when the lifecycle calls the function.
	onStart, onEnd, onIdle, onWatched atomic.Pointer[func()]
}

func newEngines(t *testing.T, idleTimeout time.Duration) *engines {
	f := &engines{t: t}
	f.lifecycle = newLifecycle(lifecycleConfig[fakeEngine]{
		clock: clock.RealClock{}, idleTimeout: idleTimeout,
		start: f.start, stopped: f.stopped, end: f.end,
		watched: func(*fakeEngine) bool { f.called(&f.onWatched); return f.watches.Load() },
		idle:    func(context.Context) { f.called(&f.onIdle) },
		slept:   func() { f.called(nil); f.slept.Add(1) },
	})
	return f
}

// called does what a test wants to happen when the lifecycle calls a function.
// called blocks for ever if the lifecycle does so with its lock held.
func (f *engines) called(hook *atomic.Pointer[func()]) {
	f.lifecycle.mu.Lock()
	//lint:ignore SA2001 it is enough that the lock was free
	f.lifecycle.mu.Unlock()
	if hook != nil {
		if do := hook.Load(); do != nil {
			(*do)()
		}
	}
}

func (f *engines) start(context.Context, string) *fakeEngine {
	f.called(&f.onStart)
	e := &fakeEngine{number: f.made.Add(1)}
	assert.True(f.t, f.running.CompareAndSwap(nil, e), "engine %d is started while another one runs", e.number)
	return e
}

func (f *engines) stopped() *fakeEngine {
	f.called(nil)
	return &fakeEngine{refuses: true}
}

func (f *engines) end(e *fakeEngine) {
	f.called(&f.onEnd)
	if f.running.CompareAndSwap(e, nil) {
		f.ended.Add(1)
	}
}

func (f *engines) expect(made, ended int32) {
	f.t.Helper()
	assert.Equal(f.t, made, f.made.Load(), "engines that were started")
	assert.Equal(f.t, ended, f.ended.Load(), "engines that ended")
}

const idleFor = time.Minute

var slowly = func() { <-time.After(time.Second) }

// Requests that arrive together get the same engine, which nobody starts twice.
func TestLifecycleStartsOneEngine(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"without a timeout": 0, "with a timeout": idleFor} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newEngines(t, timeout)
				f.onStart.Store(&slowly)
				for range 10 {
					go func() {
						e := f.lifecycle.acquire(f.t.Context(), "test")
						assert.EqualValues(t, 1, e.number, "got engine %d", e.number)
						f.lifecycle.release()
					}()
				}
				synctest.Wait()
				assert.Nil(t, f.lifecycle.current(), "an engine is there before it was started")
				<-time.After(2 * time.Second)
				f.expect(1, 0)
				f.lifecycle.stop()
				f.expect(1, 1)
			})
		})
	}
}

// The idle timeout counts from the end of a request, however long the request was.
func TestLifecycleCountsFromTheEndOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newEngines(t, idleFor)
		f.lifecycle.acquire(f.t.Context(), "test")
		<-time.After(3*idleFor - 10*time.Second)
		f.lifecycle.release()
		<-time.After(idleFor - time.Second)
		f.expect(1, 0)
		<-time.After(idleFor + 2*time.Second)
		f.expect(1, 1)
		f.lifecycle.stop()
	})
}

// An engine ends when it was idle for the timeout and not sooner; a request in
// the meantime, one that goes on, and an open watch keep it.
func TestLifecycleEndsIdleEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newEngines(t, idleFor)
		f.lifecycle.begin()
		for range 5 {
			<-time.After(idleFor - time.Second)
			f.lifecycle.acquire(f.t.Context(), "test")
			f.lifecycle.release()
		}
		f.expect(1, 0)
		f.lifecycle.acquire(f.t.Context(), "test")
		<-time.After(5 * idleFor)
		f.expect(1, 0)
		f.watches.Store(true)
		f.lifecycle.release()
		<-time.After(5 * idleFor)
		f.expect(1, 0)
		f.watches.Store(false)
		<-time.After(2*idleFor + time.Second)
		f.expect(1, 1)
		assert.EqualValues(t, 1, f.slept.Load(), "how often the cache has fallen asleep")
		assert.Nil(t, f.lifecycle.current(), "the cache that sleeps has an engine")
		e := f.lifecycle.acquire(f.t.Context(), "test")
		assert.EqualValues(t, 2, e.number, "awake again, got engine %d", e.number)
		f.lifecycle.release()
		f.lifecycle.stop()
		f.expect(2, 2)
	})
}

// A request that arrives while an idle engine is about to end keeps it, and one
// that arrives while it ends waits for the next one.
func TestLifecycleIsUsedWhileAnEngineEnds(t *testing.T) {
	request := func(f *engines, got chan<- int32) func() {
		var once sync.Once
		return func() {
			once.Do(func() {
				go func() {
					got <- f.lifecycle.acquire(f.t.Context(), "test").number
					f.lifecycle.release()
				}()
				<-time.After(time.Second)
			})
		}
	}
	for name, c := range map[string]struct {
		when func(f *engines, request func())
		want int32
	}{
		"before it is decided": {func(f *engines, request func()) { f.onIdle.Store(&request) }, 1},
		"once it is decided":   {func(f *engines, request func()) { f.onEnd.Store(&request) }, 2},
		"while the last look finds a watch": {func(f *engines, request func()) {
			looks := 0
			look := func() {
				if looks++; looks == 2 {
					f.watches.Store(true)
					request()
				}
			}
			f.onWatched.Store(&look)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newEngines(t, idleFor)
				got := make(chan int32, 1)
				c.when(f, request(f, got))
				f.lifecycle.begin()
				assert.Equal(t, c.want, <-got, "the engine that a request got")
				f.lifecycle.stop()
				f.expect(c.want, c.want)
			})
		})
	}
}

// Regression 132: a request that waits for the end of an engine ends with its context.
func TestLifecycleRequestsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newEngines(t, idleFor)
		f.lifecycle.begin()
		f.onEnd.Store(&slowly)
		<-time.After(2*idleFor + time.Millisecond)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		assert.Nil(t, f.lifecycle.acquire(ctx, "test"), "a request that is over has got an engine")
		assert.Equal(t, time.Millisecond, time.Since(began), "how long the request has waited")
		e := f.lifecycle.acquire(t.Context(), "test")
		assert.EqualValues(t, 2, e.number, "the engine of the next request")
		f.lifecycle.release()
		f.lifecycle.stop()
		f.expect(2, 2)
	})
}

// stop ends the engine that is being started, or awaits the one that ends, and
// requests are refused from then on.
func TestLifecycleStops(t *testing.T) {
	for name, when := range map[string]func(f *engines){
		"asleep": func(*engines) {},
		"while an engine starts": func(f *engines) {
			f.onStart.Store(&slowly)
			go func() { f.lifecycle.acquire(f.t.Context(), "test"); f.lifecycle.release() }()
			synctest.Wait()
		},
		"while an engine ends": func(f *engines) {
			f.lifecycle.begin()
			f.onEnd.Store(&slowly)
			<-time.After(idleFor)
			<-time.After(idleFor + time.Millisecond)
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newEngines(t, idleFor)
				when(f)
				var stops sync.WaitGroup
				for range 3 {
					stops.Go(func() { f.lifecycle.stop() })
				}
				stops.Wait()
				assert.Nil(t, f.running.Load(), "an engine runs after stop")
				select {
				case <-f.lifecycle.done():
				default:
					assert.Fail(t, "stopped, and not done")
				}
				made := f.made.Load()
				e := f.lifecycle.acquire(f.t.Context(), "test")
				if !e.refuses {
					assert.Same(t, e, f.lifecycle.current(), "after stop, a request got an engine that does not refuse it")
				}
				f.lifecycle.release()
				assert.Equal(t, made, f.made.Load(), "an engine was started after stop")
			})
		})
	}
}

// A start that panics, as a storage may, leaves the cache asleep: the next
// request starts an engine.
func TestLifecycleSurvivesAPanic(t *testing.T) {
	f := newEngines(t, 0)
	fails := func() { panic("no storage") }
	f.onStart.Store(&fails)
	func() {
		defer func() { _ = recover() }()
		f.lifecycle.acquire(f.t.Context(), "test")
	}()
	f.onStart.Store(nil)
	e := f.lifecycle.acquire(f.t.Context(), "test")
	require.NotNil(t, e, "after a panic there is no engine")
	assert.EqualValues(t, 1, e.number, "the engine after a panic")
	f.lifecycle.stop()
}

// lockedGauges has the last values, and whether they were set under the lock.
type lockedGauges struct {
	t             *testing.T
	of            *readiness
	ready, paused bool
}

func (g *lockedGauges) Ready(ready bool)   { g.locked(); g.ready = ready }
func (g *lockedGauges) Paused(paused bool) { g.locked(); g.paused = paused }

func (g *lockedGauges) locked() {
	if g.of.mu.TryLock() {
		g.of.mu.Unlock()
		assert.Fail(g.t, "the lock is free while a gauge is set: another change may come between")
	}
}

// A list makes the cache ready while a read finds out that its storage has gone back:
// whichever comes last, the metric shows it.
func TestReadinessAndItsMetricAgree(t *testing.T) {
	g := &lockedGauges{t: t}
	g.of = newReadiness(clock.RealClock{}, g)
	for _, want := range []bool{true, true, false, true} {
		g.of.set(want)
		require.Equal(t, want, g.ready)
	}
	for _, why := range []error{errors.New("undeliverable"), nil} {
		g.of.pause(why)
		require.Equal(t, why != nil, g.paused)
	}
}
