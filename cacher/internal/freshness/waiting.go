// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"slices"
	"sync"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

// RetrySeconds is the Retry-After, in seconds, of a read for a resourceVersion above the cache's.
const RetrySeconds = 1

// WaitingReads queues reads until the cache reaches a resourceVersion. A wait needs no goroutine
// and not the writer's lock, and ends with the read's context at the latest.
type WaitingReads struct {
	clock   clock.WithTicker
	timeout time.Duration
	stopped <-chan struct{}
	metrics *metrics.Resource
	cache   Follower
	// waiting wakes the progress requester when a read begins to wait.
	waiting chan struct{}

	mu struct {
		sync.Mutex
		rv      uint64    // reached by the state
		waiters []*waiter // ascending by rv
	}
}

type waiter struct {
	rv    uint64
	start time.Time
	quiet bool // needs no progress request
	fresh chan struct{}
}

// Follower is the part of the cache that waiting reads depend on.
type Follower interface {
	// Follows reports whether the state can advance. Reads fail while it can't. The channel is
	// closed when the answer may change.
	Follows() (follows bool, changed <-chan struct{})
}

// NewWaitingReads returns an empty queue. Reads wait for up to timeout, or until stopped is closed.
func NewWaitingReads(clock clock.WithTicker, timeout time.Duration, m *metrics.Resource, cache Follower, stopped <-chan struct{}) *WaitingReads {
	return &WaitingReads{
		clock: clock, timeout: timeout,
		stopped: stopped, metrics: m, cache: cache, waiting: make(chan struct{}, 1),
	}
}

// Reached sets the version of the state to rv and wakes the reads waiting for it. The caller must
// have changed the state before.
func (r *WaitingReads) Reached(rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.rv = rv
	woken := 0
	for ; woken < len(r.mu.waiters) && r.mu.waiters[woken].rv <= rv; woken++ {
		close(r.mu.waiters[woken].fresh)
	}
	r.mu.waiters = slices.Delete(r.mu.waiters, 0, woken)
}

// At returns the resourceVersion of the state.
func (r *WaitingReads) At() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.rv
}

// needProgress reports whether a read waits for a progress report, and since when the one with the
// lowest version does.
func (r *WaitingReads) needProgress() (since time.Time, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := slices.IndexFunc(r.mu.waiters, func(w *waiter) bool { return !w.quiet })
	if at < 0 {
		return time.Time{}, false
	}
	return r.mu.waiters[at].start, true
}

// Wait returns once the state has reached rv. It fails with the context's error, with
// tasks.ErrStopped, or after the timeout with a "too large resource version".
func (r *WaitingReads) Wait(ctx context.Context, rv uint64) error {
	return r.WaitFor(ctx, rv, Limit{Timeout: r.timeout})
}

// GetTimeout returns the longest wait of a GET, for storage's version and the cache in total. A GET
// that times out falls back to storage with most of the client's time left.
func GetTimeout(timeout time.Duration) time.Duration { return timeout / 6 }

// patience is the most timeouts that a read waits for while the state advances.
const patience = 5

// Limit bounds the wait of a read.
type Limit struct {
	// Timeout is the total wait, unless Patient extends it.
	Timeout time.Duration
	// Patient extends the wait to at most patience timeouts, as long as the state advances in each.
	// The cache then lacks CPU time rather than being stuck; more work for storage would not help.
	Patient bool
	// Since is the start of an earlier wait of the read, which counts against Timeout, or zero.
	Since time.Time
	// Quiet is true if the read needs no progress requests.
	Quiet bool
}

// WaitFor is Wait with a limit other than the default.
func (r *WaitingReads) WaitFor(ctx context.Context, rv uint64, limit Limit) error {
	r.mu.Lock()
	if r.mu.rv >= rv {
		r.mu.Unlock()
		return nil
	}
	start := r.clock.Now()
	w := &waiter{rv: rv, start: start, quiet: limit.Quiet, fresh: make(chan struct{})}
	r.mu.waiters = slices.Insert(r.mu.waiters, r.after(rv), w)
	at := r.mu.rv
	r.mu.Unlock()
	if !limit.Quiet {
		select {
		case r.waiting <- struct{}{}:
		default:
		}
	}

	defer func() { r.metrics.ReadWait(r.clock.Since(start)) }()
	timeout := limit.Timeout
	if !limit.Since.IsZero() {
		timeout -= start.Sub(limit.Since)
	}
	timer := r.clock.NewTimer(max(0, timeout))
	defer timer.Stop()
	for periods := 1; ; {
		follows, changed := r.cache.Follows()
		if !follows {
			return storage.NewTooLargeResourceVersionError(rv, r.leave(w), RetrySeconds)
		}
		select {
		case <-w.fresh:
			return nil
		case <-ctx.Done():
			r.leave(w)
			return ctx.Err()
		case <-r.stopped:
			r.leave(w)
			return tasks.ErrStopped
		case <-changed:
			continue
		case <-timer.C():
		}
		reached := r.At()
		if !limit.Patient || periods == patience || reached == at {
			return storage.NewTooLargeResourceVersionError(rv, r.leave(w), RetrySeconds)
		}
		at = reached
		periods++
		timer.Reset(limit.Timeout)
	}
}

func (r *WaitingReads) leave(w *waiter) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := slices.Index(r.mu.waiters, w); at >= 0 {
		r.mu.waiters = slices.Delete(r.mu.waiters, at, at+1)
	}
	return r.mu.rv
}

// after returns the index of the first waiter for a version above rv. Caller must hold mu.
func (r *WaitingReads) after(rv uint64) int {
	at, _ := slices.BinarySearchFunc(r.mu.waiters, rv, func(w *waiter, rv uint64) int {
		if w.rv <= rv {
			return -1
		}
		return 1
	})
	return at
}

// deadlineLead is the time left for an error before the deadline of an API request. At the
// deadline, the server's timeout filter ends the request and resets the response, so an error
// returned then might be lost.
const deadlineLead = 100 * time.Millisecond

// BeforeDeadline returns a context for the waits of a read. For an API server's request, it ends
// deadlineLead, or a tenth of the time left if that is shorter, before the deadline. Callers within
// the process need no such margin. The caller must call cancel after the wait.
func BeforeDeadline(ctx context.Context) (waiting context.Context, cancel context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if _, served := apirequest.RequestInfoFrom(ctx); !served || !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(deadlineLead, max(0, time.Until(deadline)/10))))
}
