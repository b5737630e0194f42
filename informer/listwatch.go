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

// ListWatch lists and watches a cache in the same process. A ListWatch
// implements the interfaces that client-go's Reflector, and everything that is
// built on it, accepts, has no goroutine and needs no closing; all its methods
// are safe for concurrent use.
type ListWatch struct {
	cache  *cacher.Cacher // nil: every request is an error
	config cacher.Config

	namespace string
	tweaks    []func(*metav1.ListOptions)
}

var _ cache.ListerWatcherWithContext = (*ListWatch)(nil)

// ListerWatcher returns a ListWatch of c; [For] returns the cache of a store.
// If c is nil or the options can't be used, every list and watch returns an
// error that says so.
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

// ListWithContext answers as GET of the collection does, with a list of the
// type that cacher.Config.NewListFunc returns. The caller may write to the list
// and everything in it.
//
// The errors are API statuses: BadRequest (400) for options that do not parse
// or do not fit together; Expired (410) for a resourceVersion or a continue
// token that is too old; Timeout (504) with the cause ResourceVersionTooLarge
// for a resourceVersion that the cache has not reached; TooManyRequests (429)
// while the cache is not ready, and when it is stopped; Timeout after
// TimeoutSeconds. If ctx ends, the error is that of ctx.
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

// WatchWithContext answers as GET of the collection with watch=true does. The
// objects of all events are plain objects, which the receiver may write to.
//
// The errors are BadRequest (400) for options that do not parse or do not fit
// together, and TooManyRequests (429) while the cache is not ready, and when it
// is stopped. If the resourceVersion is too old, at the beginning or later,
// because a slow receiver has fallen behind the window, the watch ends with an
// ERROR event that has a *metav1.Status, Expired (410).
//
// The watch ends without an ERROR event with Stop, with ctx, after
// TimeoutSeconds (never, if not set or 0), when the cache stops, and when the
// cache has to list its storage again. A watch that asked for bookmarks gets
// one 2 s before TimeoutSeconds are over.
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

// IsWatchListSemanticsUnSupported tells client-go that a watch may begin with
// the initial state (KEP-3157). The spelling is client-go's.
func (l *ListWatch) IsWatchListSemanticsUnSupported() bool { return false }

// within returns ctx with a timeout; 0 means none.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// statusOf turns an error into the API status that a client of an API server
// would get. The error of an ended context is returned unchanged.
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

// ahead is the number of events that are copied before the receiver takes them,
// so that copying and handling overlap.
const ahead = 16

// privateWatch passes on the events of a cache's watch with deep copies of
// their objects. A slow receiver delays only its own watch, which the cache
// parks like any other.
//
// The one goroutine of a privateWatch, started by WatchWithContext, is the only
// one to send on result and to close it. The goroutine ends when the cache's
// watch has ended and the receiver has all its events; when the context ends;
// and when the cache stops while the receiver takes nothing.
type privateWatch struct {
	shared watch.Interface
	cancel context.CancelFunc // ends the context of shared and of the goroutine
	result chan watch.Event
}

// ResultChan implements watch.Interface.
func (w *privateWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. Stop may be called more than once.
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
		// An object that watches share is a runtime.CacheableObject, and any other is
		// this watch's own already.
		if shared, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = shared.GetObject()
		}
		select {
		case w.result <- event:
		case <-ctx.Done():
			return
		case <-stopped:
			// The end of the cache's watch would come only after the events
			// that the receiver does not take.
			return
		}
	}
}
