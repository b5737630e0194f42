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

// ListWatch lists and watches a cache in the same process. It is what
// client-go's Reflector, and all that is built on it, takes. It holds nothing
// and runs nothing; all methods are safe for concurrent use.
type ListWatch struct {
	cache   *cacher.Cacher
	layout  layout
	options options
}

var (
	_ cache.ListerWatcher            = (*ListWatch)(nil)
	_ cache.ListerWatcherWithContext = (*ListWatch)(nil)
)

// ListerWatcher returns a ListWatch of c. What is wrong with the options is
// told by its lists and watches.
func ListerWatcher(c *cacher.Cacher, options ...Option) *ListWatch {
	return &ListWatch{cache: c, layout: layoutOf(c.Config()), options: optionsOf(options)}
}

// ListWithContext answers as GET of the collection does, with a list of the
// type that Config.NewListFunc makes. All that is in it is the caller's.
//
// Options that don't parse or don't fit together are a BadRequest; a
// resourceVersion or a continue token that is too old is Expired (410); one
// that is not there yet is a Timeout with the cause
// ResourceVersionTooLarge; a cache that is not ready, or stopped, is
// TooManyRequests (429). TimeoutSeconds ends the list with a Timeout, ctx with
// its own error.
func (l *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	r, err := l.request(options, false)
	if err != nil {
		return nil, err
	}
	limited, cancel := within(ctx, r.timeout)
	defer cancel()
	list := l.layout.config.NewListFunc()
	if err := l.cache.GetList(limited, r.key, r.options, list); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			return nil, apierrors.NewTimeoutError(fmt.Sprintf("listing %s took longer than ListOptions.timeoutSeconds: %v", l.layout.config.GroupResource, r.timeout), 0)
		}
		return nil, l.statusOf(err)
	}
	return list.DeepCopyObject(), nil
}

// WatchWithContext answers as GET of the collection with watch=true does. The
// objects of all events are plain ones, and the receiver's.
//
// Options that don't parse or don't fit together are a BadRequest; a cache
// that is not ready, or stopped, is TooManyRequests (429). What is wrong with
// the history asked for comes as an ERROR event with a *metav1.Status, and the
// watch ends: 410 Expired for a resourceVersion that is too old, at the
// beginning or later, if the receiver is so slow that it falls out of the
// window.
//
// The watch ends, without an ERROR event, with Stop, with ctx, after
// TimeoutSeconds (never, if that is not set or 0), when the cache stops, and
// when it has to list its storage anew. One that asked for bookmarks gets one
// 2 s before its time is up.
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
	return newPrivateWatch(ctx, cancel, shared, l.cache), nil
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

// within is ctx for as long as timeout; 0 is no limit.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}

// statusOf makes of an error what a client of an API server gets to see: an
// API status. The error of an ended context stays what it is.
func (l *ListWatch) statusOf(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	err = storeerr.InterpretListError(err, l.layout.config.GroupResource)
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}
