// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// watchBuffer is how many events wait in a storage watch, as in that of etcd.
const watchBuffer = 100

// backend is the storage under one cache: a fixed state that is listed or streamed by
// a watch, and events that emit sends straight to the cache's watch. Nothing between
// them costs anything: no history, no goroutine.
type backend struct {
	storage.Interface // nil: caches under measurement are not written to
	versioner         storage.APIObjectVersioner
	pods              []*corev1.Pod // in the order of their keys
	// newObject makes an empty object; each calls its argument with every object of
	// the initial state, until that says no.
	newObject func() runtime.Object
	each      func(func(runtime.Object) bool)
	// roundTrip is how long version requests and GETs take.
	roundTrip time.Duration

	version        atomic.Uint64
	versions, gets atomic.Int64 // requests
	mu             sync.Mutex
	current        *backendWatch
	// order is held from taking a version until it is on its way: a report of
	// progress must not come after an event that it does not know of.
	order sync.Mutex
}

// errWatchEnded is what emit returns when nobody watches any more.
var errWatchEnded = errors.New("the storage's watch has ended")

func newBackend(pods []*corev1.Pod) *backend {
	b := &backend{pods: pods, newObject: newPod}
	b.each = func(yield func(runtime.Object) bool) {
		for _, pod := range pods {
			if !yield(pod) {
				return
			}
		}
	}
	b.version.Store(uint64(len(pods)))
	return b
}

// emit writes the object, at the resourceVersion that it carries, and returns
// when the cache's watch has taken it.
func (b *backend) emit(object runtime.Object) error {
	rv, err := b.versioner.ObjectResourceVersion(object)
	if err != nil {
		return err
	}
	b.order.Lock()
	defer b.order.Unlock()
	b.version.Store(rv)
	return b.send(watch.Event{Type: watch.Modified, Object: object})
}

// abandon ends the watch, if the cache has not.
func (b *backend) abandon() {
	b.mu.Lock()
	w := b.current
	b.mu.Unlock()
	w.Stop()
}

func (b *backend) send(event watch.Event) error {
	b.mu.Lock()
	w := b.current
	b.mu.Unlock()
	if w == nil || !w.send(event) {
		return errWatchEnded
	}
	return nil
}

// shallow copies the object and nothing that it points to: a storage decodes into an
// object of its own.
func shallow(object runtime.Object) runtime.Object {
	from := reflect.ValueOf(object).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(runtime.Object)
}

// Watch implements storage.Interface for the one watch that a cache needs: the initial
// state and its end on request, then the emitted events.
func (b *backend) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if at := strconv.FormatUint(b.version.Load(), 10); !streamed && opts.ResourceVersion != at {
		return nil, fmt.Errorf("a watch of %q from resourceVersion %q: there is no history, resourceVersion is %s", key, opts.ResourceVersion, at)
	}
	end, err := b.bookmark(true)
	if err != nil {
		return nil, err
	}
	w := &backendWatch{result: make(chan watch.Event, watchBuffer)}
	w.ctx, w.cancel = context.WithCancel(ctx)
	context.AfterFunc(ctx, w.Stop)
	b.mu.Lock()
	b.current = w
	b.mu.Unlock()
	if !streamed {
		return w, nil
	}
	// Ends with the initial state, or with the watch.
	go func() {
		whole := true
		b.each(func(object runtime.Object) bool {
			whole = w.send(watch.Event{Type: watch.Added, Object: shallow(object)})
			return whole
		})
		if whole {
			w.send(end)
		}
	}()
	return w, nil
}

func (b *backend) bookmark(initialEventsEnd bool) (watch.Event, error) {
	object := b.newObject()
	if err := b.versioner.UpdateObject(object, b.version.Load()); err != nil {
		return watch.Event{}, err
	}
	if initialEventsEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(object); err != nil {
			return watch.Event{}, err
		}
	}
	return watch.Event{Type: watch.Bookmark, Object: object}, nil
}

// RequestWatchProgress implements storage.Interface.
func (b *backend) RequestWatchProgress(context.Context) error {
	b.order.Lock()
	defer b.order.Unlock()
	event, err := b.bookmark(false)
	if err != nil {
		return err
	}
	return b.send(event)
}

// WatchProgress tells our cacher that progress requests are answered.
func (b *backend) WatchProgress() bool { return true }

// GetCurrentResourceVersion implements storage.Interface.
func (b *backend) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	b.versions.Add(1)
	return b.version.Load(), b.travel(ctx)
}

// Get implements storage.Interface.
func (b *backend) Get(ctx context.Context, key string, _ storage.GetOptions, into runtime.Object) error {
	b.gets.Add(1)
	if err := b.travel(ctx); err != nil {
		return err
	}
	pod := findPod(b.pods, key)
	if pod == nil {
		return storage.NewKeyNotFoundError(key, int64(b.version.Load()))
	}
	pod.DeepCopyInto(into.(*corev1.Pod))
	return nil
}

// travel takes a round trip.
func (b *backend) travel(ctx context.Context) error {
	if b.roundTrip == 0 {
		return nil
	}
	timer := time.NewTimer(b.roundTrip)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// GetList implements storage.Interface for the list that fills a cache, which is one
// page. Any other list would be work that a row does not measure.
func (b *backend) GetList(_ context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.ResourceVersion != "" || !opts.Recursive || opts.Predicate.Continue != "" {
		return fmt.Errorf("a list of %q at resourceVersion %q reached the storage", key, opts.ResourceVersion)
	}
	at := b.version.Load()
	var objects []runtime.Object
	b.each(func(object runtime.Object) bool {
		objects = append(objects, object)
		return true
	})
	if err := meta.SetList(list, objects); err != nil {
		return err
	}
	return b.versioner.UpdateList(list, at, "", nil)
}

// Versioner implements storage.Interface.
func (b *backend) Versioner() storage.Versioner { return b.versioner }

// EnableResourceSizeEstimation implements storage.Interface.
func (b *backend) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// CompactRevision implements storage.Interface: nothing is compacted.
func (b *backend) CompactRevision() int64 { return 0 }

// ReadinessCheck implements storage.Interface.
func (b *backend) ReadinessCheck() error { return nil }

// backendWatch is a storage watch. The holder of mu may send; Stop ends the
// sender, and closes the channel while it holds mu.
type backendWatch struct {
	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	mu     sync.Mutex
	closed bool
}

func (w *backendWatch) ResultChan() <-chan watch.Event { return w.result }

func (w *backendWatch) Stop() {
	w.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		close(w.result)
	}
}

func (w *backendWatch) send(event watch.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	select {
	case w.result <- event:
		return true
	case <-w.ctx.Done():
		return false
	}
}
