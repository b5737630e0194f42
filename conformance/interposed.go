// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// interposed stands between a cacher and its storage, and makes happen to the
// cacher's watches what happens to those of a backend in bad times.
type interposed struct {
	storage.Interface

	mu struct {
		sync.Mutex
		gate chan struct{} // closed: events pass
		away error         // Watch fails with it
		open map[*interposedWatch]struct{}
	}
	// cutEvery ends each watch after so many events. 0: never.
	cutEvery int
}

func interpose(s storage.Interface) *interposed {
	i := &interposed{Interface: s}
	i.mu.gate = make(chan struct{})
	close(i.mu.gate)
	i.mu.open = make(map[*interposedWatch]struct{})
	return i
}

// hold keeps events back until release is called.
func (i *interposed) hold() (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	gate := make(chan struct{})
	i.mu.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

// goAway ends all watches and lets no new one be opened until the storage is
// back.
func (i *interposed) goAway(err error) (back func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.away = err
	for w := range i.mu.open {
		w.cancel()
	}
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.mu.away = nil
	}
}

// Watch implements storage.Interface.
func (i *interposed) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	i.mu.Lock()
	away := i.mu.away
	i.mu.Unlock()
	if away != nil {
		return nil, away
	}
	ctx, cancel := context.WithCancel(ctx)
	inner, err := i.Interface.Watch(ctx, key, opts)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &interposedWatch{inner: inner, ctx: ctx, cancel: cancel, result: make(chan watch.Event), storage: i}
	i.mu.Lock()
	i.mu.open[w] = struct{}{}
	if i.mu.away != nil {
		cancel()
	}
	i.mu.Unlock()
	go w.run()
	return w, nil
}

// interposedWatch is one watch. Its goroutine ends with the inner watch, which
// ends with the context.
type interposedWatch struct {
	storage *interposed
	inner   watch.Interface
	ctx     context.Context
	cancel  context.CancelFunc
	result  chan watch.Event
}

// ResultChan implements watch.Interface.
func (w *interposedWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *interposedWatch) Stop() { w.cancel() }

func (w *interposedWatch) run() {
	defer close(w.result)
	defer func() {
		w.cancel()
		w.inner.Stop()
		for range w.inner.ResultChan() { // awaits its end
		}
		w.storage.mu.Lock()
		defer w.storage.mu.Unlock()
		delete(w.storage.mu.open, w)
	}()
	for passed := 0; w.storage.cutEvery == 0 || passed < w.storage.cutEvery; passed++ {
		var e watch.Event
		var ok bool
		select {
		case e, ok = <-w.inner.ResultChan():
		case <-w.ctx.Done():
			return
		}
		if !ok {
			return
		}
		w.storage.mu.Lock()
		gate := w.storage.mu.gate
		w.storage.mu.Unlock()
		select {
		case <-gate:
		case <-w.ctx.Done():
			return
		}
		select {
		case w.result <- e:
		case <-w.ctx.Done():
			return
		}
	}
}
