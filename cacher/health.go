// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
)

// storageHealth knows whether storage answers. An event, a bookmark, a list and an
// answer all show that it does. Storage is in doubt from a request that failed until
// the next sign of life. Storage that was in doubt for the whole of timeout is lost.
type storageHealth struct {
	time    timeline.Timeline
	timeout time.Duration
	// lost and back are called without locks when storage is lost and when it is back,
	// with the time for which it was in doubt and the last error.
	lost func(silence time.Duration, err error)
	back func(silence time.Duration)

	heardAt atomic.Int64 // the last sign of life, in nanoseconds on the timeline
	// doubtful: storage is in doubt. Written with mu held.
	doubtful atomic.Bool
	// doubts wakes engine.followStorage when a doubt begins.
	doubts chan struct{}

	mu struct {
		sync.Mutex
		since  time.Duration // of the doubt, on the timeline
		err    error         // the last one
		isLost bool
		// reads wait for storage, by their numbers; asked counts them.
		reads map[uint64]*boundedRead
		asked uint64
	}
}

// boundedRead is a read that ends when storage is lost.
type boundedRead struct {
	began  time.Duration
	cancel context.CancelCauseFunc
}

func newStorageHealth(t timeline.Timeline, timeout time.Duration) *storageHealth {
	return &storageHealth{time: t, timeout: timeout, doubts: make(chan struct{}, 1)}
}

// heard notes a sign of life at a time on the timeline.
func (h *storageHealth) heard(now time.Duration) {
	h.heardAt.Store(int64(now))
	if !h.doubtful.Load() {
		return
	}
	h.mu.Lock()
	wasLost, silence := h.mu.isLost, now-h.mu.since
	h.doubtful.Store(false)
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
	if h.doubtful.Load() {
		if err != errNoAnswer {
			h.mu.err = err
		}
		return
	}
	if time.Duration(h.heardAt.Load()) > asked {
		return
	}
	h.mu.since, h.mu.err = asked, err
	h.doubtful.Store(true)
	select {
	case h.doubts <- struct{}{}:
	default: // engine.followStorage will look anyway
	}
}

// silence returns the time since the last sign of life.
func (h *storageHealth) silence() time.Duration {
	return max(0, h.time.Now()-time.Duration(h.heardAt.Load()))
}

// inDoubt reports whether storage is in doubt.
func (h *storageHealth) inDoubt() bool { return h.doubtful.Load() }

// lostSince returns for how long a lost storage was in doubt, and the last error. The
// error is nil if storage is not lost.
func (h *storageHealth) lostSince() (silence time.Duration, err error) {
	if !h.doubtful.Load() {
		return 0, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mu.isLost {
		return 0, nil
	}
	return h.time.Now() - h.mu.since, h.mu.err
}

// look finds out whether storage is lost, and ends the reads that wait for a lost
// storage, each after grace at the soonest: storage may be back. The dispatcher
// calls look once a second.
func (h *storageHealth) look(grace time.Duration) {
	if !h.doubtful.Load() {
		return
	}
	h.mu.Lock()
	now := h.time.Now()
	silence, err := now-h.mu.since, h.mu.err
	if !h.doubtful.Load() || silence < h.timeout {
		h.mu.Unlock()
		return
	}
	first := !h.mu.isLost
	h.mu.isLost = true
	for id, r := range h.mu.reads {
		if now-r.began >= grace {
			r.cancel(awayError(silence))
			delete(h.mu.reads, id)
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
	if h.mu.reads == nil {
		h.mu.reads = make(map[uint64]*boundedRead)
	}
	h.mu.asked++
	id := h.mu.asked
	h.mu.reads[id] = r
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.mu.reads, id)
		h.mu.Unlock()
	}()
	err := read(ctx)
	if err == nil {
		h.heard(h.time.Now())
		return nil
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

func awayError(silence time.Duration) error {
	return fmt.Errorf("%w for %v", errAway, silence.Round(time.Second))
}

// streak is the time for which one kind of request has failed without a success.
type streak struct {
	since atomic.Int64 // on the timeline, in nanoseconds; 0: the last one succeeded
}

func (s *streak) end() {
	if s.since.Load() != 0 {
		s.since.Store(0)
	}
}

// failed notes a failure, and reports whether requests have failed for the timeout
// although storage gave a sign of life in its second half.
func (s *streak) failed(h *storageHealth) bool {
	now := int64(h.time.Now())
	s.since.CompareAndSwap(0, max(1, now))
	since := s.since.Load()
	return now-since >= int64(h.timeout) && h.heardAt.Load() > since+int64(h.timeout/2)
}

// readiness knows whether the cache has a state to serve from. A cache becomes ready
// with the first list, and ceases to be only when the state turns out to be of another
// history (a restored backup). A ready cache is paused while storage has something
// that it can't deliver or that can't be applied.
type readiness struct {
	clock  clock.Clock
	gauges readinessGauges // set under the lock, so that the last change stays

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
	// forReads has ready and stopped for reads, which are too many for a lock; its
	// writers hold the lock.
	forReads atomic.Pointer[readyOrStopped]
}

// readinessGauges is metrics.Resource, as far as readiness needs it.
type readinessGauges interface {
	Ready(ready bool)
	Paused(paused bool)
}

type readyOrStopped struct{ ready, stopped bool }

func newReadiness(c clock.Clock, g readinessGauges) *readiness {
	r := &readiness{clock: c, gauges: g}
	r.mu.since = c.Now()
	r.mu.changed = make(chan struct{})
	r.forReads.Store(&readyOrStopped{})
	return r
}

// set notes whether the cache has a state. It returns whether that is a change, and
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
	r.gauges.Ready(ready)
	r.changedLocked()
	return true, after
}

// failed notes why the cache is not ready. unlistable: although storage answers.
func (r *readiness) failed(err error, unlistable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.ready {
		r.mu.err, r.mu.unlistable = err, r.mu.unlistable || unlistable
	}
}

// listable reports whether the cache waits for nothing but storage. One that is
// stopped waits for nothing at all.
func (r *readiness) listable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.stopped || !r.mu.unlistable
}

// pause notes why the state can't follow storage any more; nil ends the pause.
func (r *readiness) pause(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.paused == nil {
		r.mu.pausedSince = r.clock.Now()
	}
	r.mu.paused = why
	r.gauges.Paused(why != nil)
}

// pausedBy returns why the state can't follow storage, and since when. The error is
// nil if the state does follow.
func (r *readiness) pausedBy() (since time.Time, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.pausedSince, r.mu.paused
}

// stop is final. It returns false if the cache was stopped before.
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

// decides returns the readiness for a read: whether there is a state, and whether there
// will never be one.
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

// why returns why the cache is not ready, nil if it is or the reason is not known.
func (r *readiness) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.stopped:
		return tasks.ErrStopped
	case r.mu.ready:
		return nil
	}
	return r.mu.err
}

// refusal returns the error for a request that a cache which is not ready turns
// away: 429 with a Retry-After that grows with the downtime.
func (r *readiness) refusal() error {
	r.mu.Lock()
	stopped, unlistable, downtime := r.mu.stopped, r.mu.unlistable, r.clock.Since(r.mu.since)
	r.mu.Unlock()
	if stopped {
		return stoppedError(downtime)
	}
	return notReadyError(unlistable, downtime)
}

// pausedRefusal returns the error for a watch while the cache can't follow storage:
// the watch would be ended at once. The error is nil while the cache follows.
func (r *readiness) pausedRefusal() error {
	since, why := r.pausedBy()
	if why == nil {
		return nil
	}
	return pausedError(r.clock.Since(since))
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
	return freshness.RetrySeconds
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

// silence returns the time since storage's last sign of life; false if there was none
// since the cache is awake.
func (e *engine) silence() (time.Duration, bool) {
	at := e.health.heardAt.Load()
	return max(0, e.time.Now()-time.Duration(at)), at > 0 || e.readiness.ready()
}
