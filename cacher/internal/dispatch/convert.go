// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// remedyType is the advice logged if an object can't be made.
const remedyType = "look at NewFunc and at the Versioner: the type must have the metadata of an object"

// event returns the type and object of the watch event for outcome o.
func (f *Fanout) event(e *watchcache.Event, o match.Outcome) (watch.EventType, object) {
	switch o {
	case match.Enters:
		return watch.Added, f.object(e.Element)
	case match.Stays:
		return watch.Modified, f.object(e.Element)
	default:
		return watch.Deleted, f.object(f.left(e))
	}
}

func (f *Fanout) object(e *watchcache.Element) object {
	return object{element: e, encodings: f.encodings}
}

// left returns the last state that matched the query, at the resourceVersion of the event that
// ended the match. Storage reports deletions this way. For updates we copy the previous state, once
// for all watchers.
func (f *Fanout) left(e *watchcache.Event) *watchcache.Element {
	if e.Type == watchcache.Deleted {
		return e.Element
	}
	return e.DeletedView(func(e *watchcache.Event) *watchcache.Element { return f.lastState(e.Previous, e.RV) })
}

// lastState returns a copy of e at rv, the version of the event that ended it.
func (f *Fanout) lastState(e *watchcache.Element, rv uint64) *watchcache.Element {
	object := e.Object.DeepCopyObject()
	if err := f.Versioner.UpdateObject(object, rv); err != nil {
		f.Warn("copy", "The resourceVersion of an object that has left a selection could not be set. The watch cache sends it as it was",
			fmt.Errorf("setting resourceVersion %d of %q: %w", rv, e.Key, err), remedyType)
	}
	return &watchcache.Element{Key: e.Key, RV: rv, Object: object, Labels: e.Labels, Fields: e.Fields, Size: e.Size}
}

// bookmark returns a bookmark event at rv. Each call makes an object. initialEventsEnd marks the
// end of initial events (KEP-3157).
func (f *Fanout) bookmark(rv uint64, initialEventsEnd bool) (watch.Event, error) {
	object := f.NewObject()
	if err := f.Versioner.UpdateObject(object, rv); err != nil {
		return watch.Event{}, err
	}
	if initialEventsEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(object); err != nil {
			return watch.Event{}, err
		}
	}
	return watch.Event{Type: watch.Bookmark, Object: object}, nil
}
