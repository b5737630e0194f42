// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/keptlists"
)

// heldUp measures how long an event takes to an established watcher while
// others begin with the whole state, one after the other. They don't read, so
// that what is measured is their beginning.
type heldUp struct {
	events    int
	startRate int // per second
}

func (m heldUp) open(_ context.Context, s size) (*work, error) {
	large := makePods(s.objects)
	small := makePods(max(namespaces, s.objects/10/namespaces*namespaces))
	events := s.of(m.events, s.repeats)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		few, err := m.latency(ctx, sub, small, events)
		if err != nil {
			return nil, err
		}
		many, err := m.latency(ctx, sub, large, events)
		return []float64{many, many / few}, err
	}), nil
}

// latency returns the median, in nanoseconds.
func (m heldUp) latency(ctx context.Context, sub subject, pods []*corev1.Pod, events int) (float64, error) {
	b := newBackend(pods)
	c, err := open(ctx, sub, b, cacheOptions{})
	if err != nil {
		return 0, err
	}
	defer c.close()
	writes := updates(pods, events)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.Watch(ctx, prefix, storage.ListOptions{ResourceVersion: newest(writes), Predicate: storage.Everything, Recursive: true})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	starting, stop := context.WithCancel(ctx)
	var starter sync.WaitGroup
	var failed error
	starter.Go(func() { failed = m.startMany(starting, c) })
	latencies := make([]time.Duration, 0, events)
	for _, pod := range writes {
		begun := time.Now()
		if err = b.emit(pod); err != nil {
			break
		}
		if err = receive(ctx, w); err != nil {
			break
		}
		latencies = append(latencies, time.Since(begun))
	}
	stop()
	starter.Wait()
	if err == nil {
		err = failed
	}
	return percentile(latencies, 50), err
}

// startMany begins watches at resourceVersion "0" until the context ends.
func (m heldUp) startMany(ctx context.Context, c *cached) error {
	ticker := time.NewTicker(time.Second / time.Duration(m.startRate))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		w, err := c.Watch(ctx, prefix, storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
		if err != nil {
			return err
		}
		err = receive(ctx, w) // it has begun
		w.Stop()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func receive(ctx context.Context, w watch.Interface) error {
	select {
	case event, ok := <-w.ResultChan():
		if !ok || event.Type == watch.Error {
			return fmt.Errorf("instead of an event: %v (open: %v)", event, ok)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// namespaced measures what a watch over one namespace of many costs until it
// has its initial events, and how much it allocates, which tells how many
// elements it walks.
type namespaced struct{ repeats int }

func (m namespaced) open(ctx context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	caches, err := sideBySide(ctx, pods, 0, plain)
	if err != nil {
		return nil, err
	}
	n := s.of(m.repeats, s.repeats)
	measure := func(ctx context.Context, sub subject) ([]float64, error) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		each, err := cost(n, func() error {
			for range n {
				if err := m.begin(ctx, caches[sub], len(pods)/namespaces); err != nil {
					return err
				}
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		return []float64{each, float64(after.Mallocs-before.Mallocs) / float64(n)}, err
	}
	return &work{measure: measure, close: caches.close}, nil
}

// begin begins a watch as an API server with server.InstallAPIGroup does, which puts the
// namespace into the context and shares initial events, and takes these.
func (m namespaced) begin(ctx context.Context, c *cached, want int) error {
	namespace := namespaceName(42)
	ctx, cancel := context.WithCancel(request.WithNamespace(ctx, namespace))
	defer cancel()
	w, err := c.Watch(keptlists.ShareInitialEvents(ctx), prefix+namespace, storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
	if err != nil {
		return err
	}
	defer w.Stop()
	for range want {
		if err := receive(ctx, w); err != nil {
			return err
		}
	}
	return nil
}
