// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// The names of the devices that a faulty storage has its faults with.
const (
	// missedDevice is a device of which the storage's watches tell nothing.
	missedDevice = "missed"
	// lateDevice is the device from whose first event on the storage's watches fall
	// behind, each by a fourth of the time, until lateness: later than a LIST waits, which
	// is five times the freshness timeout, and never without an event for long, so that no
	// watch counts as hung.
	lateDevice = "late"
	lateness   = 3 * time.Second
)

// etcdStorage is what a cache uses of a storage of package etcd3.
type etcdStorage interface {
	storage.Interface
	WatchProgress() bool
	IsWatchListSemanticsUnSupported() bool
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
	KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error)
}

// faultyStorage is a storage on etcd whose watches have the faults that etcd itself
// does not have on demand. All else is as it should be.
type faultyStorage struct {
	etcdStorage
	late atomic.Bool
}

// openFaulty opens the storage of one resource.
func openFaulty(r decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	settings, err := etcd3.ConfigFrom(r.Config.Config)
	if err != nil {
		return nil, nil, err
	}
	settings.Prefix = "" // the resource has its own
	backend, err := etcd3.Open(context.Background(), settings)
	if err != nil {
		return nil, nil, err
	}
	raw, destroy, err := decoration.Open(backend.RawStorage, r)
	if err != nil {
		return nil, nil, err
	}
	closeAll := sync.OnceFunc(func() {
		destroy()
		_ = backend.Close()
	})
	inner, ok := raw.(etcdStorage)
	if !ok {
		closeAll()
		return nil, nil, fmt.Errorf("%T lacks a method of etcdStorage", raw)
	}
	return &faultyStorage{etcdStorage: inner}, closeAll, nil
}

// Watch implements storage.Interface.
func (s *faultyStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	inner, err := s.etcdStorage.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	w := &faultyWatch{Interface: inner, storage: s, ctx: ctx, result: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run()
	return w, nil
}

// faultyWatch passes the events of a watch on, in order. Its goroutine is started
// by faultyStorage.Watch, and ends with the watch, with Stop or with the context.
type faultyWatch struct {
	watch.Interface
	storage *faultyStorage
	late    time.Time // since when the watch falls behind
	ctx     context.Context
	result  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

// Stop implements watch.Interface.
func (w *faultyWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.Interface.Stop()
}

// ResultChan implements watch.Interface.
func (w *faultyWatch) ResultChan() <-chan watch.Event { return w.result }

// timed is an event and the time from which on it may be passed on.
type timed struct {
	event watch.Event
	at    time.Time
}

func (w *faultyWatch) run() {
	defer close(w.result)
	var queue []timed
	for in := w.Interface.ResultChan(); in != nil || len(queue) > 0; {
		var head watch.Event
		var out chan<- watch.Event
		var due <-chan time.Time
		if len(queue) > 0 {
			head = queue[0].event
			if pause := time.Until(queue[0].at); pause > 0 {
				due = time.After(pause)
			} else {
				out = w.result
			}
		}
		select {
		case event, ok := <-in:
			if !ok {
				in = nil
			} else if at, passes := w.judge(event); passes {
				queue = append(queue, timed{event, at})
			}
		case out <- head:
			queue = queue[1:]
		case <-due:
		case <-w.stopped:
			return
		case <-w.ctx.Done():
			return
		}
	}
}

// judge returns when an event is to be passed on, and whether it is at all.
func (w *faultyWatch) judge(event watch.Event) (at time.Time, passes bool) {
	if object, err := meta.Accessor(event.Object); err == nil {
		switch object.GetName() {
		case missedDevice:
			return at, false
		case lateDevice:
			w.storage.late.Store(true)
		}
	}
	at = time.Now()
	if w.storage.late.Load() {
		if w.late.IsZero() {
			w.late = at
		}
		at = at.Add(min(lateness, at.Sub(w.late)/4))
	}
	return at, true
}
