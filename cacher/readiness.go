// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

// readiness knows whether the cache has a state to serve from. A cache is not ready
// at first, becomes ready with the first list, and is not ready again only when
// the state turns out to be of another history (a restored backup). A cache that
// is ready is paused while storage has something that it can't deliver or that
// can't be applied.
type readiness struct {
	clock   clock.Clock
	metrics *metrics.Resource // told of each change under the lock, so that the last one stays

	mu struct {
		sync.Mutex
		ready   bool
		stopped bool
		since   time.Time // of the last change of ready
		err     error     // why it is not ready yet, if known
		// unlistable: it is not ready because storage has something that can't
		// be listed, and not because storage is away.
		unlistable bool
		// paused is why the state can't follow storage, nil while it does, and
		// pausedSince since when.
		paused      error
		pausedSince time.Time
		changed     chan struct{} // closed at the next change of ready or stopped
	}
	// forReads is ready and stopped for reads, which are too many for a lock; its
	// writers hold the lock.
	forReads atomic.Pointer[readyOrStopped]
}

type readyOrStopped struct{ ready, stopped bool }

func newReadiness(c clock.Clock, m *metrics.Resource) *readiness {
	r := &readiness{clock: c, metrics: m}
	r.mu.since = c.Now()
	r.mu.changed = make(chan struct{})
	r.forReads.Store(&readyOrStopped{})
	return r
}

// set notes whether the cache has a state. set returns whether that is a change, and
// how long it was the other way round.
func (r *readiness) set(ready bool) (changed bool, after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.stopped || r.mu.ready == ready {
		return false, 0
	}
	now := r.clock.Now()
	after = now.Sub(r.mu.since)
	r.mu.ready, r.mu.err, r.mu.since, r.mu.unlistable = ready, nil, now, false
	r.metrics.Ready(ready)
	r.changedLocked()
	return true, after
}

// failed notes why the cache is not ready.
func (r *readiness) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.ready {
		r.mu.err = err
	}
}

// notListable notes that storage can't be listed although it answers.
func (r *readiness) notListable() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.unlistable = !r.mu.ready
}

// listable reports whether the cache waits for nothing but storage. One that is
// stopped waits for nothing at all.
func (r *readiness) listable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.stopped || !r.mu.unlistable
}

// pause notes why the state can't follow storage any more. follow ends the pause.
func (r *readiness) pause(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.paused == nil {
		r.mu.pausedSince = r.clock.Now()
		r.metrics.Paused(true)
	}
	r.mu.paused = why
}

func (r *readiness) follow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.paused = nil
	r.metrics.Paused(false)
}

// pausedBy returns why the state can't follow storage, and since when. The error is
// nil if the state does follow.
func (r *readiness) pausedBy() (since time.Time, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pausedSince, r.mu.paused
}

// stop is final. stop returns false if the cache was stopped before.
func (r *readiness) stop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.stopped {
		return false
	}
	r.mu.stopped, r.mu.ready, r.mu.since = true, false, r.clock.Now()
	r.changedLocked()
	return true
}

func (r *readiness) changedLocked() {
	r.forReads.Store(&readyOrStopped{r.mu.ready, r.mu.stopped})
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

func (r *readiness) ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ready
}

// readySince returns whether the cache is ready, and since when it is or is not.
func (r *readiness) readySince() (ready bool, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ready, r.mu.since
}

// decides returns what matters to a read: whether there is a state, and whether
// there will never be one.
func (r *readiness) decides() (ready, stopped bool) {
	now := r.forReads.Load()
	return now.ready, now.stopped
}

// wait returns when the cache is ready, stopped, the context is done or it is
// late; a nil channel never is.
func (r *readiness) wait(ctx context.Context, late <-chan time.Time) error {
	for {
		r.mu.Lock()
		ready, stopped, changed := r.mu.ready, r.mu.stopped, r.mu.changed
		r.mu.Unlock()
		switch {
		case stopped:
			return tasks.ErrStopped
		case ready:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return errLate
		}
	}
}

// why returns why the cache is not ready, without the content of objects. The error
// is nil if the cache is ready, or the reason is not known.
func (r *readiness) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.stopped:
		return tasks.ErrStopped
	case r.mu.ready || r.mu.err == nil:
		return nil
	}
	return withoutContent(r.mu.err)
}

// refusal is the answer to a request that a cache which is not ready turns
// away: 429 with a Retry-After that grows with the downtime.
func (r *readiness) refusal() error {
	r.mu.Lock()
	stopped, err, downtime := r.mu.stopped, r.mu.err, r.clock.Since(r.mu.since)
	r.mu.Unlock()
	if stopped {
		return stoppedError(downtime)
	}
	return notReadyError(err, downtime)
}

// pausedRefusal is the answer to a watch while the cache can't follow storage: the
// watch would be ended at once. The error is nil while the cache follows.
func (r *readiness) pausedRefusal() error {
	since, why := r.pausedBy()
	if why == nil {
		return nil
	}
	return pausedError(why, r.clock.Since(since))
}

// retryStale is the Retry-After, in seconds, of a read that the cache can't serve
// fresh and that must not go to storage. The longer the cache has not been ready,
// or has been paused, the longer it is.
func (r *readiness) retryStale() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.mu.ready:
		return retryAfter(r.clock.Since(r.mu.since))
	case r.mu.paused != nil:
		return retryAfter(r.clock.Since(r.mu.pausedSince))
	}
	return fresh.RetrySeconds
}

// warm waits for the state of a cache that a request has just woken up. warm
// reports whether there is one now that was not there before.
func (e *engine) warm(ctx context.Context) bool {
	left := e.warmUntil.Sub(e.config.Clock.Now())
	if e.warmUntil.IsZero() || left <= 0 {
		return false
	}
	timer := e.config.Clock.NewTimer(left)
	defer timer.Stop()
	return e.readiness.wait(ctx, timer.C()) == nil
}
