// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
)

// storageHealth knows whether storage answers. Events, bookmarks, lists and answers are
// signs of life. Storage is unresponsive from a request that failed until the next sign of
// life, and lost once it has been unresponsive for timeout.
type storageHealth struct {
	time    timeline.Timeline
	timeout time.Duration
	// lost and back are called without locks, with the time for which storage was
	// unresponsive and the last error.
	lost func(silence time.Duration, err error)
	back func(silence time.Duration)

	heardAt atomic.Int64 // the last sign of life, in nanoseconds on the timeline
	// refusing is since when version requests fail, likewise; 0: they don't.
	refusing atomic.Int64
	// unanswered: storage is unresponsive. Written with mu held.
	unanswered atomic.Bool

	mu struct {
		sync.Mutex
		since  time.Duration // of the outage, on the timeline
		err    error         // the last one
		isLost bool
		reads  map[*boundedRead]bool // which wait for storage
	}
}

// boundedRead is a read that ends when storage is lost.
type boundedRead struct {
	began  time.Duration
	cancel context.CancelCauseFunc
}

func newStorageHealth(t timeline.Timeline, timeout time.Duration) *storageHealth {
	h := &storageHealth{time: t, timeout: timeout}
	h.mu.reads = make(map[*boundedRead]bool)
	return h
}

// heard notes a sign of life at a time on the timeline.
func (h *storageHealth) heard(now time.Duration) {
	h.heardAt.Store(int64(now))
	if !h.unanswered.Load() {
		return
	}
	h.mu.Lock()
	wasLost, silence := h.mu.isLost, now-h.mu.since
	h.unanswered.Store(false)
	h.mu.isLost, h.mu.err = false, nil
	h.mu.Unlock()
	if wasLost {
		h.back(silence)
	}
}

// failed notes that a request of storage, which was made at a time on the timeline,
// has failed. A sign of life since then counts for more.
func (h *storageHealth) failed(asked time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = errNoAnswer // the request was given up
	}
	if h.unanswered.Load() {
		if err != errNoAnswer {
			h.mu.err = err
		}
		return
	}
	if time.Duration(h.heardAt.Load()) > asked {
		return
	}
	h.mu.since, h.mu.err = asked, err
	h.unanswered.Store(true)
}

// silence returns the time since the last sign of life.
func (h *storageHealth) silence() time.Duration {
	return max(0, h.time.Now()-time.Duration(h.heardAt.Load()))
}

func (h *storageHealth) unresponsive() bool { return h.unanswered.Load() }

// readsWait reports whether a read waits for storage.
func (h *storageHealth) readsWait() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.reads) > 0
}

// outage returns for how long storage has been unresponsive, the last error, and
// whether it is lost.
func (h *storageHealth) outage() (silence time.Duration, err error, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unanswered.Load() {
		silence, err, lost = h.time.Now()-h.mu.since, h.mu.err, h.mu.isLost
	}
	return silence, err, lost
}

// look finds out whether storage is lost, and ends the reads that have waited for a lost
// storage for grace. The dispatcher calls look once a second.
func (h *storageHealth) look(grace time.Duration) {
	if !h.unanswered.Load() {
		return
	}
	h.mu.Lock()
	now := h.time.Now()
	silence, err := now-h.mu.since, h.mu.err
	if !h.unanswered.Load() || silence < h.timeout {
		h.mu.Unlock()
		return
	}
	first := !h.mu.isLost
	h.mu.isLost = true
	for r := range h.mu.reads {
		if now-r.began >= grace {
			r.cancel(fmt.Errorf("%w for %v", errAway, silence.Round(time.Second)))
			delete(h.mu.reads, r)
		}
	}
	h.mu.Unlock()
	if first {
		h.lost(silence, err)
	}
}

// bound runs a read that storage answers. The read ends when storage is lost, and
// early enough before its client's deadline to return a status.
func (h *storageHealth) bound(client context.Context, read func(context.Context) error) error {
	inTime, stop := freshness.BeforeDeadline(client)
	defer stop()
	ctx, cancel := context.WithCancelCause(inTime)
	defer cancel(nil)
	r := &boundedRead{began: h.time.Now(), cancel: cancel}
	h.mu.Lock()
	h.mu.reads[r] = true
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.mu.reads, r)
		h.mu.Unlock()
	}()
	err := read(ctx)
	if err == nil || storage.IsNotFound(err) {
		h.heard(h.time.Now())
		return err
	}
	away := context.Cause(ctx)
	switch {
	case errors.Is(away, errAway):
		return awayStatus(away)
	case away != nil && client.Err() == nil:
		return awayStatus(errOwnTime)
	}
	return err
}

// refuses notes that a version request has failed, and reports whether they have failed for
// the timeout although storage gave a sign of life in its second half.
func (h *storageHealth) refuses() bool {
	now := int64(h.time.Now())
	h.refusing.CompareAndSwap(0, max(1, now))
	since := h.refusing.Load()
	return now-since >= int64(h.timeout) && h.heardAt.Load() > since+int64(h.timeout/2)
}

// readiness knows whether the cache has a state to serve from. A cache becomes ready
// with the first list, and ceases to be only when the state turns out to be of another
// history (a restored backup). A ready cache is paused while storage has something
// that it can't deliver or that can't be applied.
type readiness struct {
	clock  clock.Clock
	gauges readinessGauges // set under the lock, so that the last change stays

	mu sync.Mutex // of writers
	at atomic.Pointer[readyState]
}

// readyState is the readiness at one time. It is immutable.
type readyState struct {
	ready, stopped bool
	since          time.Time // of the last change of the two
	err            error     // why it is not ready yet, if known
	// unlistable: it is not ready because storage has something that can't be listed,
	// and not because storage is away.
	unlistable bool
	// paused is why the state can't follow storage, nil while it does, and pausedSince
	// since when.
	paused      error
	pausedSince time.Time
	changed     chan struct{} // closed at the next change of ready or stopped
}

// readinessGauges is metrics.Resource, as far as readiness needs it.
type readinessGauges interface {
	Ready(ready bool)
	Paused(paused bool)
}

func newReadiness(c clock.Clock, g readinessGauges) *readiness {
	r := &readiness{clock: c, gauges: g}
	r.at.Store(&readyState{since: c.Now(), changed: make(chan struct{})})
	return r
}

// now returns the present state.
func (r *readiness) now() *readyState { return r.at.Load() }

// ready reports whether there is a state to serve from.
func (r *readiness) ready() bool { return r.now().ready }

// change changes the state and returns the one before.
func (r *readiness) change(change func(*readyState)) (before *readyState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.now()
	next := *before
	change(&next)
	if woken := next.ready != before.ready || next.stopped != before.stopped; woken {
		next.since, next.changed = r.clock.Now(), make(chan struct{})
		defer close(before.changed)
	}
	r.at.Store(&next)
	return before
}

// set notes whether the cache has a state. It returns whether that is a change, and
// how long it was the other way round.
func (r *readiness) set(ready bool) (changed bool, after time.Duration) {
	before := r.change(func(s *readyState) {
		if changed = !s.stopped && s.ready != ready; changed {
			s.ready, s.err, s.unlistable = ready, nil, false
			r.gauges.Ready(ready)
		}
	})
	return changed, r.now().since.Sub(before.since)
}

// failed notes why the cache is not ready. unlistable: although storage answers.
func (r *readiness) failed(err error, unlistable bool) {
	r.change(func(s *readyState) {
		if !s.ready {
			s.err, s.unlistable = err, s.unlistable || unlistable
		}
	})
}

// pause notes why the state can't follow storage any more; nil ends the pause.
func (r *readiness) pause(why error) {
	r.change(func(s *readyState) {
		if s.paused == nil {
			s.pausedSince = r.clock.Now()
		}
		s.paused = why
		r.gauges.Paused(why != nil)
	})
}

// stop is final.
func (r *readiness) stop() { r.change(func(s *readyState) { s.stopped, s.ready = true, false }) }

// wait returns when the cache is ready, stopped, or the context is done.
func (r *readiness) wait(ctx context.Context) error {
	for {
		s := r.now()
		switch {
		case s.stopped:
			return tasks.ErrStopped
		case s.ready:
			return nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// why returns why the cache is not ready, nil if it is or the reason is not known.
func (s *readyState) why() error {
	switch {
	case s.stopped:
		return tasks.ErrStopped
	case s.ready:
		return nil
	}
	return s.err
}

// listable reports whether no object that can't be delivered prevents a list; it is true
// of a cache that is stopped.
func (s *readyState) listable() bool { return s.stopped || !s.unlistable }

// refusal returns the error for a request that a cache which is not ready turns away: 429
// with a Retry-After that grows with the downtime.
func (r *readiness) refusal() error {
	why := "storage is (re)initializing"
	switch s := r.now(); {
	case s.stopped:
		why = tasks.ErrStopped.Error()
	case s.unlistable:
		why += ": storage has an object that it cannot deliver"
	}
	return refusedError(why, r.retryStale())
}

// pausedRefusal returns the error for a watch while the cache can't follow storage:
// the watch would be ended at once. The error is nil while the cache follows.
func (r *readiness) pausedRefusal() error {
	if r.now().paused == nil {
		return nil
	}
	return refusedError("the watch cache is paused: storage cannot deliver the next change", r.retryStale())
}

// retryStale is the Retry-After, in seconds, of a read that the cache can't serve
// fresh and that must not go to storage. The longer the cache has not been ready,
// or has been paused, the longer it is.
func (r *readiness) retryStale() int {
	switch s := r.now(); {
	case !s.ready:
		return retryAfter(r.clock.Since(s.since))
	case s.paused != nil:
		return retryAfter(r.clock.Since(s.pausedSince))
	}
	return freshness.RetrySeconds
}

// warm waits for the state of a cache that a request has just woken up. warm
// reports whether there is one now that was not there before.
func (e *engine) warm(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, e.warmUntil.Sub(e.config.Clock.Now()))
	defer cancel()
	return e.readiness.wait(ctx) == nil
}
