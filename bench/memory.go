// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// memory returns what is in use: the heap, and stacks.
func memory() (heap, stacks float64) {
	// The second collection frees what finalizers and pools held on to.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), float64(m.StackInuse)
}

// idle measures what a watcher takes that nothing happens to, its client's
// goroutine and its request's context included.
type idle struct{ watchers int }

func (m idle) open(_ context.Context, s size) (*work, error) {
	pods := makePods(namespaces)
	m.watchers = s.of(m.watchers, s.watchers)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		if sub == floor {
			return m.measureOn(ctx, &fan{channels: make([][]chan watch.Event, apps)})
		}
		c, err := open(ctx, sub, newBackend(pods), cacheOptions{})
		if err != nil {
			return nil, err
		}
		defer c.close()
		return m.measureOn(ctx, c)
	}), nil
}

func (m idle) measureOn(ctx context.Context, on watcher) ([]float64, error) {
	if err := settle(ctx); err != nil {
		return nil, err
	}
	goroutines := runtime.NumGoroutine()
	heap, stacks := memory()
	a := &watchClients{clients: make([]*client, 0, m.watchers)}
	defer a.leave()
	for i := range m.watchers {
		p, err := predicate(byLabel(i, i%apps))
		if err != nil {
			return nil, err
		}
		if err := a.join(on, watchRequest{ctx: ctx, key: prefix, opts: storage.ListOptions{
			ResourceVersion: strconv.Itoa(namespaces), Predicate: p, Recursive: true,
		}}); err != nil {
			return nil, err
		}
	}
	if err := settle(ctx); err != nil {
		return nil, err
	}
	heapNow, stacksNow := memory()
	n := float64(m.watchers)
	return []float64{
		(heapNow - heap + stacksNow - stacks) / n,
		(heapNow - heap) / n,
		float64(runtime.NumGoroutine()-goroutines) / n,
	}, nil
}

// openSettled opens a cache and returns when nothing moves any more.
func openSettled(ctx context.Context, sub subject, b *backend) (*cached, error) {
	c, err := open(ctx, sub, b, cacheOptions{})
	if err != nil {
		return nil, err
	}
	if err := settle(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// perObject measures what the cache takes for an object beside the object.
func perObject(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		if _, err := podCodec(); err != nil {
			return nil, err
		}
		b := newBackend(pods)
		// The cache keeps a shallow copy of each Pod, as it would a decoded object.
		copies := make([]apiruntime.Object, len(pods))
		for i, pod := range pods {
			copies[i] = shallow(pod)
		}
		copied, _ := memory()
		clear(copies)
		c, err := openSettled(ctx, sub, b)
		if err != nil {
			return nil, err
		}
		defer c.close()
		after, _ := memory()
		runtime.KeepAlive(pods)
		runtime.KeepAlive(copies)
		return []float64{(after - copied) / float64(len(pods))}, nil
	}), nil
}

// perEvent measures what an event in the window takes beside the objects that
// it leads from and to. Every other update changes a selectable field.
func perEvent(_ context.Context, s size) (*work, error) {
	pods := makePods(s.objects)
	writes := updates(pods, max(1, s.objects/4))
	for i, pod := range writes {
		if i%2 == 0 {
			pod.Status.Phase = corev1.PodSucceeded
		}
	}
	return fresh(func(ctx context.Context, sub subject) ([]float64, error) {
		b := newBackend(pods)
		c, err := openSettled(ctx, sub, b)
		if err != nil {
			return nil, err
		}
		defer c.close()
		before, _ := memory()
		for _, pod := range writes {
			if err := b.emit(pod); err != nil {
				return nil, err
			}
		}
		if err := reached(ctx, c, writes[len(writes)-1]); err != nil {
			return nil, err
		}
		if err := settle(ctx); err != nil {
			return nil, err
		}
		after, _ := memory()
		runtime.KeepAlive(pods)
		runtime.KeepAlive(writes)
		return []float64{(after - before) / float64(len(writes))}, kept(ctx, s, c, writes)
	}), nil
}

// reached returns when the cache shows the Pod. The reader asks for whatever is there:
// a read that waits would keep what it waits with for some seconds.
func reached(ctx context.Context, c *cached, pod *corev1.Pod) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for shown := (corev1.Pod{}); shown.ResourceVersion != pod.ResourceVersion; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := c.Get(ctx, prefix+pod.Namespace+"/"+pod.Name, storage.GetOptions{ResourceVersion: "0"}, &shown); err != nil {
			return err
		}
	}
	return nil
}

// kept fails unless the window still has all writes.
func kept(ctx context.Context, s size, c *cached, writes []*corev1.Pod) error {
	a := &watchClients{}
	defer a.leave()
	if err := a.join(c, watchRequest{ctx: ctx, key: prefix, want: len(writes), opts: storage.ListOptions{
		ResourceVersion: newest(writes), Predicate: storage.Everything, Recursive: true,
	}}); err != nil {
		return err
	}
	if err := a.await(ctx, 10*s.patience, everything); err != nil {
		return err
	}
	a.leave()
	closed, err := a.complete()
	if closed > 0 {
		return errors.New("the window does not have all events any more")
	}
	return err
}
