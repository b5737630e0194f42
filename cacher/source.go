// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/utils/clock"
)

// source is the wrapped storage as client-go's Reflector wants it: a
// ListerWatcher over the whole resource. Its watches outlive the storage's: a
// broken one is resumed where it broke, so that the Reflector, which would
// list anew, hears only of what can't be resumed.
type source struct {
	storage storage.Interface
	prefix  string
	newList func() runtime.Object
	clock   clock.WithTicker
	tasks   *tasks
	// watchContext marks the calls that must share one watch stream of the
	// storage's client.
	watchContext func(context.Context) context.Context
	// broke is told of each storage watch that ended without being asked to,
	// stuck of an error that the storage gives again and again instead of an
	// event.
	broke func(error)
	stuck func(watch.Event)
	// resync carries the order to give up the current watch and list anew.
	resync chan error
}

var _ cache.ListerWatcherWithContext = (*source)(nil)

// errListAnew is what the Reflector is told when it must list anew.
var errListAnew = errors.New("the cache lists anew")

// listAnew makes the Reflector list anew, whatever it does. It never blocks.
func (s *source) listAnew(why error) {
	select {
	case s.resync <- why:
	default: // an order is waiting already
	}
}

// answersPatience is how long a storage may take to show that it is there.
const answersPatience = 2 * time.Second

// answers tells whether the storage is there: it answers a version request.
func (s *source) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answersPatience)
	defer cancel()
	_, err := s.storage.GetCurrentResourceVersion(ctx)
	return err == nil
}

// listed tells that the Reflector has listed: an order from before is met.
func (s *source) listed() {
	select {
	case <-s.resync:
	default:
	}
}

// ListWithContext lists the storage, at its latest version: how fresh the list
// must be is for the cache to say, not for the Reflector.
func (s *source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// The Reflector does not await its list calls; Stop does.
	if !s.tasks.begin() {
		return nil, errStopped
	}
	defer s.tasks.end()
	list := s.newList()
	err := s.storage.GetList(ctx, s.prefix, storage.ListOptions{
		Predicate: storage.SelectionPredicate{
			Label: labels.Everything(), Field: fields.Everything(),
			Limit: options.Limit, Continue: options.Continue,
		},
		Recursive: true,
	}, list)
	return list, err
}

// WatchWithContext watches the storage, from a version or with the initial
// state first.
func (s *source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(s.watchContext(ctx))
	stream := &stream{
		source: s, ctx: ctx, cancel: cancel,
		result:  make(chan watch.Event, 1),
		rv:      options.ResourceVersion,
		initial: options.SendInitialEvents != nil && *options.SendInitialEvents,
	}
	first, err := stream.open(options)
	if err != nil {
		cancel()
		return nil, err
	}
	if !s.tasks.run(func() { stream.run(first) }) {
		first.Stop()
		cancel()
		return nil, errStopped
	}
	return stream, nil
}

// List and Watch make source a cache.ListerWatcher; the Reflector uses the
// methods with a context.
func (s *source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (s *source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported tells client-go whether the storage can
// begin a watch with the initial state.
func (s *source) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(s.storage)
}

// listAnewStatus is the watch event that ends the Reflector's watch so that it
// lists anew.
func listAnewStatus(why error) watch.Event {
	status := apierrors.NewResourceExpired(fmt.Sprintf("%v: %v", errListAnew, why)).Status()
	return watch.Event{Type: watch.Error, Object: &status}
}
