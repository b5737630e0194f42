// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"
)

// stopping measures Stop in the middle of a burst.
type stopping struct{ watchers, stalled int }

func (m stopping) open(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	writes := updates(pods, s.burst)
	m.watchers, m.stalled = s.of(m.watchers, s.watchers), s.of(m.stalled, s.watchers)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		return m.measure(ctx, s, sub, pods, writes)
	}), nil
}

func (m stopping) measure(ctx context.Context, s size, sub subject, pods, writes []*corev1.Pod) ([]float64, error) {
	if err := settle(ctx); err != nil {
		return nil, err
	}
	goroutines := runtime.NumGoroutine()
	b := newBackend(pods)
	c, err := open(ctx, sub, b, cacheOptions{})
	if err != nil {
		return nil, err
	}
	a := &watchClients{}
	defer a.leave()
	for i := range m.watchers {
		if err := a.join(c, watchRequest{
			ctx: ctx, key: prefix, stalled: i < m.stalled,
			opts: storage.ListOptions{ResourceVersion: newest(writes), Predicate: storage.Everything, Recursive: true},
		}); err != nil {
			return nil, err
		}
	}
	if err := settle(ctx); err != nil {
		return nil, err
	}
	half := make(chan struct{})
	emitted := make(chan error, 1)
	// Ends with the storage's watch, at the latest when it is abandoned.
	go func() { emitted <- m.emit(b, writes, half) }()
	<-half
	hung, took := stopWithin(c, s.patience)
	a.leave()
	b.abandon()
	if err := <-emitted; err != nil && !errors.Is(err, errWatchEnded) {
		return nil, err
	}
	left, err := goroutinesAbove(ctx, goroutines, s.patience)
	return []float64{hung, float64(took), float64(left)}, err
}

// emit writes everything, and closes half when half of it is written.
func (stopping) emit(b *backend, writes []*corev1.Pod, half chan struct{}) error {
	for i, pod := range writes {
		if i == len(writes)/2 {
			close(half)
		}
		if err := b.emit(pod); err != nil {
			return err
		}
	}
	return nil
}

// stopWithin stops a cache. One that hangs is left behind; hung is then 1, else 0.
func stopWithin(c *cached, patience time.Duration) (hung float64, took time.Duration) {
	stopped := make(chan struct{})
	begun := time.Now()
	go func() {
		c.stop()
		close(stopped)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-stopped:
		return 0, time.Since(begun)
	case <-timer.C:
		return 1, time.Since(begun)
	}
}

// goroutinesAbove returns how many goroutines more than n there are, once there
// are none or patience is at its end.
func goroutinesAbove(ctx context.Context, n int, patience time.Duration) (int, error) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for begun := time.Now(); ; {
		above := runtime.NumGoroutine() - n
		if above <= 0 || time.Since(begun) >= patience {
			return max(0, above), nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
