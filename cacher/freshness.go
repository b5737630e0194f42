// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
)

// retryTooLarge is the Retry-After, in seconds, of a read for a
// resourceVersion that the cache has not reached.
const retryTooLarge = 1

// freshness lets reads wait for the cache to reach a resourceVersion: without
// a goroutine, without the writer's lock, and no longer than their context.
type freshness struct {
	clock   clock.WithTicker
	timeout time.Duration
	stopped <-chan struct{}
	metrics *metrics.Resource
	// stale is who may go to storage when a wait was in vain.
	stale *staleReads
	// waiting is signalled when someone begins to wait; the progress
	// requester listens.
	waiting chan struct{}

	mu struct {
		sync.Mutex
		rv      uint64 // what the state has reached
		waiters waiterHeap
	}
}

type waiter struct {
	rv    uint64
	index int // in the heap; -1 when it has left
	fresh chan struct{}
}

func newFreshness(config Config, m *metrics.Resource, stopped <-chan struct{}) *freshness {
	return &freshness{
		clock: config.Clock, timeout: config.FreshnessTimeout,
		stopped: stopped, metrics: m, stale: newStaleReads(config), waiting: make(chan struct{}, 1),
	}
}

// reached tells that the state shows rv now, and wakes who waited for it. The
// state is changed before, so whoever is woken finds it.
func (f *freshness) reached(rv uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.rv = rv
	for len(f.mu.waiters) > 0 && f.mu.waiters[0].rv <= rv {
		close(heap.Pop(&f.mu.waiters).(*waiter).fresh)
	}
}

// anyone tells whether someone waits.
func (f *freshness) anyone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mu.waiters) > 0
}

// wait returns once the state has reached rv. It fails with the context's
// error, with errStopped, or after the timeout with a retryable "too large
// resource version".
func (f *freshness) wait(ctx context.Context, rv uint64) error {
	f.mu.Lock()
	if f.mu.rv >= rv {
		f.mu.Unlock()
		return nil
	}
	w := &waiter{rv: rv, fresh: make(chan struct{})}
	heap.Push(&f.mu.waiters, w)
	f.mu.Unlock()
	select {
	case f.waiting <- struct{}{}:
	default:
	}

	start := f.clock.Now()
	defer func() { f.metrics.ReadWait(f.clock.Since(start)) }()
	timeout := f.clock.NewTimer(f.timeout)
	defer timeout.Stop()
	select {
	case <-w.fresh:
		return nil
	case <-ctx.Done():
		f.leave(w)
		return ctx.Err()
	case <-f.stopped:
		f.leave(w)
		return errStopped
	case <-timeout.C():
		return storage.NewTooLargeResourceVersionError(rv, f.leave(w), retryTooLarge)
	}
}

// leave takes w out of the queue and returns what the state has reached.
func (f *freshness) leave(w *waiter) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.index >= 0 {
		heap.Remove(&f.mu.waiters, w.index)
	}
	return f.mu.rv
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
