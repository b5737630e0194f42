// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// converter makes watch events of what the state machine has.
type converter struct {
	versioner storage.Versioner
	newObject func() runtime.Object
	encodings *encodings
}

// added is an element as an initial event.
func (c *converter) added(e *watchcache.Element) watch.Event {
	return watch.Event{Type: watch.Added, Object: c.object(e)}
}

// event is what a watcher is told of an event that affects it.
func (c *converter) event(e *watchcache.Event, o outcome) watch.Event {
	switch o {
	case enters:
		return watch.Event{Type: watch.Added, Object: c.object(e.Element)}
	case stays:
		return watch.Event{Type: watch.Modified, Object: c.object(e.Element)}
	default:
		return watch.Event{Type: watch.Deleted, Object: c.object(c.left(e))}
	}
}

func (c *converter) object(e *watchcache.Element) runtime.Object {
	return &object{element: e, encodings: c.encodings}
}

// left is the last state that was in the selection, at the resourceVersion of
// the event that took it out. The storage reports a deletion's that way
// itself; for an update the previous state is copied, once for all watchers.
func (c *converter) left(e *watchcache.Event) *watchcache.Element {
	if e.Type == watchcache.Deleted {
		return e.Element
	}
	return e.Left(func(e *watchcache.Event) *watchcache.Element { return c.lastState(e.Previous, e.RV) })
}

// lastState is an element as it was, at the resourceVersion at which it ceased
// to be.
func (c *converter) lastState(e *watchcache.Element, rv uint64) *watchcache.Element {
	object := e.Object.DeepCopyObject()
	if err := c.versioner.UpdateObject(object, rv); err != nil {
		klog.ErrorS(err, "The resourceVersion of an object could not be set", "key", e.Key, "resourceVersion", rv)
	}
	return &watchcache.Element{Key: e.Key, RV: rv, Object: object, Labels: e.Labels, Fields: e.Fields, Size: e.Size}
}

// bookmark is a bookmark event at rv, of an object that belongs to the one
// watcher it is made for. initialEventsEnd marks the end of initial events
// (KEP-3157).
func (c *converter) bookmark(rv uint64, initialEventsEnd bool) (watch.Event, error) {
	object := c.newObject()
	if err := c.versioner.UpdateObject(object, rv); err != nil {
		return watch.Event{}, err
	}
	if initialEventsEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(object); err != nil {
			return watch.Event{}, err
		}
	}
	return watch.Event{Type: watch.Bookmark, Object: object}, nil
}
