// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"container/heap"
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

// WaitingReads lets reads wait until the cache has reached a resourceVersion:
// without a goroutine, without the writer's lock, and no longer than their
// context.
type WaitingReads struct {
	clock   clock.WithTicker
	timeout time.Duration
	stopped <-chan struct{}
	metrics *metrics.Resource
	// waiting is signalled when a read begins to wait; the progress requester
	// listens.
	waiting chan struct{}

	mu struct {
		sync.Mutex
		rv      uint64 // what the state has reached
		waiters waiterHeap
		// paused: the state reaches nothing more for now. pauses is closed when
		// that begins.
		paused bool
		pauses chan struct{}
	}
}

type waiter struct {
	rv    uint64
	start time.Time
	index int  // in the heap; -1 when it has left
	quiet bool // needs no progress request
	fresh chan struct{}
}

// NewWaitingReads lets reads wait until stopped is closed, each for up to timeout.
func NewWaitingReads(clock clock.WithTicker, timeout time.Duration, m *metrics.Resource, stopped <-chan struct{}) *WaitingReads {
	r := &WaitingReads{
		clock: clock, timeout: timeout,
		stopped: stopped, metrics: m, waiting: make(chan struct{}, 1),
	}
	r.mu.pauses = make(chan struct{})
	return r
}

// Pause notes whether the state is kept from reaching anything more for now.
// Meanwhile no read waits: it would wait in vain.
func (r *WaitingReads) Pause(paused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case paused && !r.mu.paused:
		close(r.mu.pauses)
	case !paused && r.mu.paused:
		r.mu.pauses = make(chan struct{})
	}
	r.mu.paused = paused
}

// Reached records that the state shows rv now, and wakes the reads that waited for it.
// The caller has already changed the state.
func (r *WaitingReads) Reached(rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.rv = rv
	for len(r.mu.waiters) > 0 && r.mu.waiters[0].rv <= rv {
		close(heap.Pop(&r.mu.waiters).(*waiter).fresh)
	}
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

// Wait returns once the state has reached rv. It fails with the context's
// error, with tasks.ErrStopped, or after the timeout with a retryable "too large
// resource version".
func (r *WaitingReads) Wait(ctx context.Context, rv uint64) error {
	return r.WaitFor(ctx, rv, Limit{Timeout: r.timeout})
}

// GetTimeout returns how long a GET waits, for storage's version and until the
// cache has reached it, where other reads wait for timeout. A GET that has waited
// in vain goes to storage, which has most of the client's time left.
func GetTimeout(timeout time.Duration) time.Duration { return timeout / 6 }

// Limit bounds the wait of a read, and says whether it needs progress reports.
type Limit struct {
	// Timeout is how long the read waits in all.
	Timeout time.Duration
	// Since is when the read began to wait; zero: it has not waited yet.
	Since time.Time
	// Quiet: no progress is requested on behalf of the read.
	Quiet bool
}

func (l Limit) left(now time.Time) time.Duration {
	if l.Since.IsZero() {
		return l.Timeout
	}
	return l.Timeout - now.Sub(l.Since)
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
	heap.Push(&r.mu.waiters, w)
	pauses := r.mu.pauses
	r.mu.Unlock()
	if !limit.Quiet {
		select {
		case r.waiting <- struct{}{}:
		default:
		}
	}

	defer func() { r.metrics.ReadWait(r.clock.Since(start)) }()
	timer := r.clock.NewTimer(max(0, limit.left(start)))
	defer timer.Stop()
	select {
	case <-w.fresh:
		return nil
	case <-ctx.Done():
		r.leave(w)
		return ctx.Err()
	case <-r.stopped:
		r.leave(w)
		return tasks.ErrStopped
	case <-pauses:
		return storage.NewTooLargeResourceVersionError(rv, r.leave(w), RetrySeconds)
	case <-timer.C():
		return storage.NewTooLargeResourceVersionError(rv, r.leave(w), RetrySeconds)
	}
}

// leave takes w out of the heap and returns the version that the state has reached.
func (r *WaitingReads) leave(w *waiter) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&r.mu.waiters, w.index)
	}
	return r.mu.rv
}

// waiterHeap orders waiters by the resourceVersion they wait for.
type waiterHeap []*waiter

func (h waiterHeap) Len() int           { return len(h) }
func (h waiterHeap) Less(i, j int) bool { return h[i].rv < h[j].rv }
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiterHeap) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waiterHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	w.index = -1
	return w
}

// lastWord is how long before its deadline a read of an API server's client gives up. At
// the deadline, the server's timeout filter ends the request and resets the stream of an
// answer that has begun: an error returned at that moment might be lost.
const lastWord = 100 * time.Millisecond

// BeforeDeadline returns a context for the waits of a read. If ctx is that of an API
// server's request, the context ends in time for an answer: lastWord before the
// deadline, if there is one, and before the last tenth of a shorter time. A caller in
// the process needs no such time. The caller calls cancel after the wait.
func BeforeDeadline(ctx context.Context) (waiting context.Context, cancel context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if _, served := apirequest.RequestInfoFrom(ctx); !served || !ok {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline.Add(-min(lastWord, max(0, time.Until(deadline)/10))))
}
