// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
)

// ListWatch lists and watches a cache in the same process. It implements the interfaces of
// client-go's Reflector, has no goroutine and needs no closing. Its methods are safe for concurrent
// use.
type ListWatch struct {
	cache  *cacher.Cacher // if nil, every request fails
	config cacher.Config

	namespace string
	tweaks    []func(*metav1.ListOptions)
}

var _ cache.ListerWatcherWithContext = (*ListWatch)(nil)

// ListerWatcher returns a ListWatch of c. If c is nil or an option is invalid, every list and watch
// fails.
func ListerWatcher(c *cacher.Cacher, options ...Option) *ListWatch {
	l := &ListWatch{cache: c}
	for _, option := range options {
		option(l)
	}
	if c != nil {
		l.config = c.Config()
	}
	return l
}

// ListWithContext lists like a GET of the collection, with a list of the type of
// cacher.Config.NewListFunc. The caller may modify the list and its items.
//
// Errors are API statuses: BadRequest (400) for invalid options, Expired (410) for an old
// resourceVersion or continue token, Timeout (504) after TimeoutSeconds or, with cause
// ResourceVersionTooLarge, for a resourceVersion that the cache has not reached, and
// TooManyRequests (429) if the cache isn't ready or stopped. If ctx ends, the error is ctx's.
func (l *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	r, err := l.request(options, false)
	if err != nil {
		return nil, err
	}
	limited, cancel := within(ctx, r.timeout)
	defer cancel()
	list := l.config.NewListFunc()
	if err := l.cache.GetList(limited, r.key, r.options, list); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			return nil, apierrors.NewTimeoutError(fmt.Sprintf("listing %s took longer than ListOptions.timeoutSeconds: %v", l.config.GroupResource, r.timeout), 0)
		}
		return nil, l.statusOf(err)
	}
	return list.DeepCopyObject(), nil
}

// WatchWithContext watches like a GET of the collection with watch=true. Event objects are plain
// objects that the receiver may modify.
//
// Errors are BadRequest (400) for invalid options, and TooManyRequests (429) if the cache isn't
// ready or stopped. If the resourceVersion is or becomes too old, the latter for a slow receiver,
// the watch ends with an ERROR event of a *metav1.Status, Expired (410).
//
// The watch ends without an ERROR event on Stop, with ctx, after TimeoutSeconds (0 means never),
// and when the cache stops or relists. A watch that allows bookmarks gets one 2 s before
// TimeoutSeconds elapse.
func (l *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	r, err := l.request(options, true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(ctx, r.timeout)
	shared, err := l.cache.Watch(ctx, r.key, r.options)
	if err != nil {
		cancel()
		return nil, l.statusOf(err)
	}
	w := &privateWatch{shared: shared, cancel: cancel, result: make(chan watch.Event, ahead)}
	go w.run(ctx, l.cache.Done())
	return w, nil
}

// List is ListWithContext without a context.
func (l *ListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch is WatchWithContext without a context.
func (l *ListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported returns false, so client-go requests the initial state
// (KEP-3157). The spelling is client-go's.
func (l *ListWatch) IsWatchListSemanticsUnSupported() bool { return false }

func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// statusOf converts an error to an API server's status. It doesn't convert that of a context.
func (l *ListWatch) statusOf(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = storeerr.InterpretListError(err, l.config.GroupResource)
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}

// ahead is the number of events copied before the receiver reads them.
const ahead = 16

// privateWatch forwards the events of a cache's watch with deep copies of their objects. A slow
// receiver delays only its own watch, which the cache parks like any other.
//
// Its one goroutine alone sends on result and closes it. It ends after the last event of an ended
// watch, with the context, or when the cache stops while the receiver isn't reading.
type privateWatch struct {
	shared watch.Interface
	cancel context.CancelFunc // ends the context of shared and of the goroutine
	result chan watch.Event
}

// ResultChan implements watch.Interface.
func (w *privateWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. It may be called more than once.
func (w *privateWatch) Stop() {
	w.shared.Stop()
	w.cancel()
}

func (w *privateWatch) run(ctx context.Context, stopped <-chan struct{}) {
	defer close(w.result)
	defer w.Stop()
	for event := range w.shared.ResultChan() {
		if ctx.Err() != nil {
			return
		}
		// A CacheableObject is shared by watches; any other object is already our own.
		if shared, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = shared.GetObject()
		}
		select {
		case w.result <- event:
		case <-ctx.Done():
			return
		case <-stopped:
			// The cache closes its watch only after all events are received.
			return
		}
	}
}
