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

// RetrySeconds is the Retry-After, in seconds, of a read for a
// resourceVersion that the cache has not reached.
const RetrySeconds = 1

// WaitingReads lets reads wait until the cache has reached a resourceVersion: without a
// goroutine, without the writer's lock, and no longer than their context.
type WaitingReads struct {
	clock   clock.WithTicker
	timeout time.Duration
	stopped <-chan struct{}
	metrics *metrics.Resource
	cache   Follower
	// waiting is signalled when a read begins to wait; the progress requester
	// listens.
	waiting chan struct{}

	mu struct {
		sync.Mutex
		rv      uint64    // what the state has reached
		waiters []*waiter // in the order of their versions
	}
}

type waiter struct {
	rv    uint64
	start time.Time
	quiet bool // needs no progress request
	fresh chan struct{}
}

// Follower is the cache as far as waiting reads depend on it.
type Follower interface {
	// Follows reports whether the state can advance: reads fail while it can't, because
	// waiting is no use. The channel is closed when the answer may change.
	Follows() (follows bool, changed <-chan struct{})
}

// NewWaitingReads lets reads wait until stopped is closed, each for up to timeout.
func NewWaitingReads(clock clock.WithTicker, timeout time.Duration, m *metrics.Resource, cache Follower, stopped <-chan struct{}) *WaitingReads {
	return &WaitingReads{
		clock: clock, timeout: timeout,
		stopped: stopped, metrics: m, cache: cache, waiting: make(chan struct{}, 1),
	}
}

// Reached records that the state shows rv now, and wakes the reads that waited for it.
// The caller has already changed the state.
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

// At returns the resourceVersion that the state has reached.
func (r *WaitingReads) At() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.rv
}

// needProgress reports whether a read waits that needs a progress report, and since when
// one of the first has waited.
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

// GetTimeout returns how long a GET waits, for storage's version and until the
// cache has reached it, where other reads wait for timeout. A GET that has waited
// in vain goes to storage, which has most of the client's time left.
func GetTimeout(timeout time.Duration) time.Duration { return timeout / 6 }

// patience is how many times its timeout a read waits at most while the state advances.
const patience = 5

// Limit bounds the wait of a read, and says whether it needs progress reports.
type Limit struct {
	// Timeout is how long the read waits in all.
	Timeout time.Duration
	// Patient: the read waits on, up to patience times the timeout, for as long as the
	// state reaches something in each timeout. The cache is late then, not stuck: it lacks
	// CPU time, and the read has an answer sooner than by making storage work for it.
	Patient bool
	// Since is when the read began to wait; zero: it has not waited yet.
	Since time.Time
	// Quiet: no progress is requested on behalf of the read.
	Quiet bool
}

// WaitFor is Wait with a limit of the read's own.
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

// leave takes w out of the waiters and returns the version that the state has reached.
func (r *WaitingReads) leave(w *waiter) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := slices.Index(r.mu.waiters, w); at >= 0 {
		r.mu.waiters = slices.Delete(r.mu.waiters, at, at+1)
	}
	return r.mu.rv
}

// after returns where the waiters begin that wait for a version above rv. The caller
// holds mu.
func (r *WaitingReads) after(rv uint64) int {
	at, _ := slices.BinarySearchFunc(r.mu.waiters, rv, func(w *waiter, rv uint64) int {
		if w.rv <= rv {
			return -1
		}
		return 1
	})
	return at
}

// deadlineLead is how long before its deadline a read of an API server's client gives up. At
// the deadline, the server's timeout filter ends the request and resets the stream of an
// answer that has begun: an error returned at that moment might be lost.
const deadlineLead = 100 * time.Millisecond

// BeforeDeadline returns a context for the waits of a read. If ctx is that of an API
// server's request, the context ends in time for an answer: deadlineLead before the
// deadline, if there is one, and before the last tenth of a shorter time. A caller in
// the process needs no such time. The caller calls cancel after the wait.
func BeforeDeadline(ctx context.Context) (waiting context.Context, cancel context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if _, served := apirequest.RequestInfoFrom(ctx); !served || !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(deadlineLead, max(0, time.Until(deadline)/10))))
}
