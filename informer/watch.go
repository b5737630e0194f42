// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
)

// ahead is the number of events that are copied before the receiver takes them,
// so that copying and handling overlap.
const ahead = 16

// privateWatch passes on the events of a cache's watch with deep copies of
// their objects. A slow receiver delays only its own watch, which the cache
// parks like any other.
//
// The one goroutine of a privateWatch, started by newPrivateWatch, is the only
// one to send on result and to close it. The goroutine ends when the cache's
// watch has ended and the receiver has all its events; when the context ends;
// and when the cache stops while the receiver takes nothing.
type privateWatch struct {
	ctx    context.Context
	cancel context.CancelFunc
	shared watch.Interface
	cache  *cacher.Cacher
	result chan watch.Event
}

var _ watch.Interface = (*privateWatch)(nil)

// newPrivateWatch takes over shared, a watch of c that ends with ctx, and
// cancel, which ends ctx.
func newPrivateWatch(ctx context.Context, cancel context.CancelFunc, shared watch.Interface, c *cacher.Cacher) *privateWatch {
	w := &privateWatch{ctx: ctx, cancel: cancel, shared: shared, cache: c, result: make(chan watch.Event, ahead)}
	go w.run()
	return w
}

// ResultChan implements watch.Interface.
func (w *privateWatch) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. Stop may be called more than once.
func (w *privateWatch) Stop() {
	w.shared.Stop()
	w.cancel()
}

func (w *privateWatch) run() {
	defer close(w.result)
	defer w.Stop()
	for event := range w.shared.ResultChan() {
		if w.ctx.Err() != nil || !w.send(watch.Event{Type: event.Type, Object: private(event.Object)}) {
			return
		}
	}
}

// send returns false if the watch must end.
func (w *privateWatch) send(event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-w.ctx.Done():
		return false
	case <-w.cache.Done():
		// The end of the cache's watch would come only after the events
		// that the receiver does not take.
		return false
	}
}

// private returns a deep copy of an event's object.
func private(object runtime.Object) runtime.Object {
	if shared, ok := object.(runtime.CacheableObject); ok {
		return shared.GetObject()
	}
	return object.DeepCopyObject()
}
