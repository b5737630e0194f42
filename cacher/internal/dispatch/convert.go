// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// remedyType is the log's advice about an object that can't be made.
const remedyType = "look at NewFunc and at the Versioner: the type must have the metadata of an object"

// converter makes watch events of the state machine's elements and events.
type converter struct {
	versioner storage.Versioner
	newObject func() runtime.Object
	encodings *encodings
	warn      func(kind, message string, err error, remedy string)
}

// replayed returns the watch event for a watcher that is affected by an event and
// reads it from the window.
func (c *converter) replayed(e *watchcache.Event, o match.Outcome) watch.Event {
	kind, element := c.told(e, o)
	return watch.Event{Type: kind, Object: &replayed{c.object(element)}}
}

// event returns the watch event for watchers that are affected by an event that is
// dispatched.
func (c *converter) event(e *watchcache.Event, o match.Outcome) watch.Event {
	kind, element := c.told(e, o)
	return watch.Event{Type: kind, Object: &dispatched{object: c.object(element)}}
}

// told returns the type of the watch event and the state that it carries.
func (c *converter) told(e *watchcache.Event, o match.Outcome) (watch.EventType, *watchcache.Element) {
	switch o {
	case match.Enters:
		return watch.Added, e.Element
	case match.Stays:
		return watch.Modified, e.Element
	default:
		return watch.Deleted, c.left(e)
	}
}

func (c *converter) object(e *watchcache.Element) object {
	return object{element: e, encodings: c.encodings}
}

// left returns the last state that matched the query, at the resourceVersion of
// the event that took it out. Storage itself reports the last state before a
// deletion that way; for an update the previous state is copied, once for all
// watchers.
func (c *converter) left(e *watchcache.Event) *watchcache.Element {
	if e.Type == watchcache.Deleted {
		return e.Element
	}
	return e.DeletedView(func(e *watchcache.Event) *watchcache.Element { return c.lastState(e.Previous, e.RV) })
}

// lastState returns an element as it was, at the resourceVersion at which it
// ceased to be.
func (c *converter) lastState(e *watchcache.Element, rv uint64) *watchcache.Element {
	object := e.Object.DeepCopyObject()
	if err := c.versioner.UpdateObject(object, rv); err != nil {
		c.warn("copy", "The resourceVersion of an object that has left a selection could not be set. The watch cache sends it as it was",
			fmt.Errorf("setting resourceVersion %d of %q: %w", rv, e.Key, err), remedyType)
	}
	return &watchcache.Element{Key: e.Key, RV: rv, Object: object, Labels: e.Labels, Fields: e.Fields, Size: e.Size}
}

// bookmark returns a bookmark event at rv, with an object of its own for each watcher.
// initialEventsEnd marks the end of initial events (KEP-3157).
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
