// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// asleep is the number of users of a cache that has no engine, or is about to
// have none.
const asleep = -1

// sleep is whether a cache is awake, which is whether it has an engine. A cache
// wakes up for a request and, if it has an idle timeout, falls asleep after a
// time without any.
//
// sleep.mu is held for a few fields, and to start an engine, which takes the
// locks of that engine's parts: nobody else knows them yet.
type sleep struct {
	// engine is nil while the cache sleeps. Once the cache is stopped it is the
	// last one, which turns everyone away.
	engine atomic.Pointer[engine]
	// users is how many calls use the engine now, or asleep. Without an idle
	// timeout nobody counts. Only those who hold mu change it from and to asleep.
	users atomic.Int64
	// used: someone has come since the cache was last looked at.
	used atomic.Bool

	mu struct {
		sync.Mutex
		stopped   bool
		estimates bool          // sizes are estimated since the first time awake
		ending    chan struct{} // closed when the engine that sleeps is gone
	}
}

// enter returns the engine, which stays until leave is called. It wakes the
// cache if it sleeps.
func (c *Cacher) enter() *engine {
	if c.config.IdleTimeout == 0 {
		if e := c.sleep.engine.Load(); e != nil {
			return e
		}
		return c.wake(true)
	}
	if !c.sleep.used.Load() {
		c.sleep.used.Store(true)
	}
	for {
		n := c.sleep.users.Load()
		if n == asleep {
			return c.wake(true)
		}
		if c.sleep.users.CompareAndSwap(n, n+1) {
			return c.sleep.engine.Load()
		}
	}
}

// leave ends the use of an engine that enter or wake began.
func (c *Cacher) leave() {
	if c.config.IdleTimeout != 0 {
		c.sleep.users.Add(-1)
	}
}

// wake returns the engine as enter does, after starting one if there is none.
// Those who come while an engine ends wait for it to be gone: it and its
// follower would count the same things. patient: those who need the state may
// wait for it.
func (c *Cacher) wake(patient bool) *engine {
	s := &c.sleep
	s.mu.Lock()
	for s.mu.ending != nil {
		ending := s.mu.ending
		s.mu.Unlock()
		<-ending
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if e := s.engine.Load(); e != nil {
		s.users.Add(1)
		return e
	}
	e := assemble(c.config, c.metrics, &c.lastError)
	if s.mu.stopped {
		e.stop() // it has started nothing, and turns everyone away
	} else {
		c.startLocked(e, patient)
	}
	s.engine.Store(e)
	s.users.Store(1)
	return e
}

func (c *Cacher) startLocked(e *engine, patient bool) {
	s := &c.sleep
	if patient {
		e.warmUntil = c.config.Clock.Now().Add(c.config.FreshnessTimeout)
		c.metrics.WokenUp()
		if c.config.LazyStart && !s.mu.estimates {
			if err := c.estimateSizes(); err != nil {
				e.noteError(err)
				klog.ErrorS(err, "The sizes of objects won't be estimated", "resource", c.config.GroupResource)
			}
		}
	}
	s.mu.estimates = true
	e.start()
	if c.config.IdleTimeout != 0 {
		// Ends with the cache, or when it has put the cache to sleep; awaited
		// by Stop.
		c.tasks.run(func() { c.followUse(e) })
	}
}

// followUse puts the cache to sleep once nobody has used it for the idle
// timeout; at the latest when it was idle for twice as long.
func (c *Cacher) followUse(e *engine) {
	for {
		select {
		case <-c.config.Clock.After(c.config.IdleTimeout):
		case <-c.done.Done():
			return
		}
		if c.busy(e) {
			continue
		}
		c.rememberStats()
		if c.fallAsleep(e) {
			return
		}
	}
}

// busy tells whether anyone uses the cache or has since it was last asked. An
// open watch is a use.
func (c *Cacher) busy(e *engine) bool {
	used := c.sleep.used.Swap(false)
	if live, catchingUp := e.registry.counts(); live+catchingUp > 0 {
		c.sleep.used.Store(true)
		return true
	}
	return used || c.sleep.users.Load() > 0
}

// fallAsleep ends the engine if nobody uses it, and returns whether it did.
func (c *Cacher) fallAsleep(e *engine) bool {
	s := &c.sleep
	s.mu.Lock()
	if s.mu.stopped || !s.users.CompareAndSwap(0, asleep) {
		s.mu.Unlock()
		return false
	}
	// Nobody can come any more. Who came since the cache was found idle has
	// opened a watch, or is gone.
	if live, catchingUp := e.registry.counts(); live+catchingUp > 0 {
		s.users.Store(0)
		s.mu.Unlock()
		return false
	}
	ending := make(chan struct{})
	s.mu.ending = ending
	s.engine.Store(nil)
	s.mu.Unlock()

	e.stop()
	c.metrics.FellAsleep()

	s.mu.Lock()
	s.mu.ending = nil
	s.mu.Unlock()
	close(ending)
	return true
}

// close is final: no engine is started any more, and the last one is stopped.
func (s *sleep) close() {
	s.mu.Lock()
	s.mu.stopped = true
	e := s.engine.Load()
	s.mu.Unlock()
	if e != nil {
		e.stop()
	}
}

// warm waits for the state of a cache that has just woken up. It returns
// whether there is one now that was not there before.
func (c *engine) warm(ctx context.Context) bool {
	left := c.warmUntil.Sub(c.config.Clock.Now())
	if c.warmUntil.IsZero() || left <= 0 {
		return false
	}
	timer := c.config.Clock.NewTimer(left)
	defer timer.Stop()
	return c.readiness.wait(ctx, timer.C()) == nil
}
