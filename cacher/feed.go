// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"

	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// feed is the store that the Reflector writes to. It computes an object's key and attributes once,
// applies the change to the state, and never waits for a watcher. It runs on the Reflector's
// goroutine; only loader uses others. It must not skip a change. If it can't apply one, it ignores
// all later ones and orders a relist.
type feed struct {
	*engine
	builder *elementBuilder
	// applied counts changes; we measure one in measuredEvery.
	applied uint
	// broken is true from a change that can't be applied until the next Replace.
	broken bool
}

var (
	_ cache.ReflectorStore         = (*feed)(nil)
	_ cache.ReflectorBookmarkStore = (*feed)(nil)
)

// Add implements cache.ReflectorStore.
func (f *feed) Add(obj any) error { return f.apply(watchcache.Added, obj) }

// Update implements cache.ReflectorStore.
func (f *feed) Update(obj any) error { return f.apply(watchcache.Modified, obj) }

// Delete implements cache.ReflectorStore.
func (f *feed) Delete(obj any) error { return f.apply(watchcache.Deleted, obj) }

// Resync implements cache.ReflectorStore. It does nothing.
func (f *feed) Resync() error { return nil }

var eventTypes = [...]metrics.EventType{
	watchcache.Added:    metrics.EventAdded,
	watchcache.Modified: metrics.EventModified,
	watchcache.Deleted:  metrics.EventDeleted,
}

// measuredEvery limits the cost of reading the clock, a tenth of the time measured.
const measuredEvery = 16

func (f *feed) apply(typ watchcache.EventType, obj any) error {
	now := f.time.Now()
	f.condition.heard()
	if f.broken {
		return nil
	}
	measured := f.applied%measuredEvery == 0
	f.applied++
	element, err := f.builder.changedElement(typ, obj)
	if err != nil {
		f.fail(err)
		return nil
	}
	applied, err := f.state.Apply(watchcache.Change{
		Type: typ, Element: element, RV: element.RV, Received: int64(now),
		Whole: !f.storage.ReportsProgress(),
	})
	switch {
	case err != nil:
		f.fail(err)
		return nil
	case applied.Event == nil:
		return nil
	}
	f.metrics.Event(eventTypes[typ])
	f.metrics.WindowCut(applied.Cut)
	if measured {
		f.metrics.StageTook(metrics.StageFeed, f.time.Now()-now)
	}
	complete := f.state.RV()
	f.metrics.SetResourceVersion(complete)
	f.waiting.Reached(complete)
	f.progress.Changed()
	if complete < element.RV {
		f.progress.RevisionOpen()
	}
	f.fanout.WakeUp()
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore. It reports that the watch delivered all events
// up to the version.
func (f *feed) Bookmark(resourceVersion string) error {
	f.condition.heard()
	if f.broken {
		return nil
	}
	rv, err := f.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		f.fail(faultf(err, "a bookmark's resourceVersion %q", resourceVersion))
		return nil
	}
	if err := f.state.Progress(rv); err != nil {
		f.fail(err)
		return nil
	}
	f.metrics.Event(metrics.EventBookmark)
	f.metrics.SetResourceVersion(rv)
	f.fanout.RevisionEnds()
	f.waiting.Reached(rv)
	return nil
}

// Replace implements cache.ReflectorStore. The source passed the list's items to a loader.
func (f *feed) Replace(_ []any, resourceVersion string) error {
	f.condition.heard()
	loaded, ok := f.storage.source.TakeInitialState().(*loader)
	if !ok {
		return faultf(nil, "the list of %s at resourceVersion %q was not kept", f.config.GroupResource, resourceVersion)
	}
	rv, err := f.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return faultf(err, "a list's resourceVersion %q", resourceVersion)
	}
	elements, err := loaded.elements()
	if err != nil {
		f.condition.handle(event{kind: listRefused, err: err})
		return errNotTaken // for the Reflector's log
	}
	f.condition.handle(event{
		kind: listArrives, rv: rv, contradicts: f.contradicts(elements, rv),
		backwards: rv < f.state.RV(), partial: f.state.Unfinished() == rv,
	})
	if n := f.state.Replace(elements, rv); n > 0 {
		f.journal.warn("keys", "Listed objects share their keys with others. The watch cache has one object for each key",
			faultf(nil, "%d listed objects of %s share a key with another one", n, f.config.GroupResource), remedyFunction)
	}
	f.measure()
	f.broken = false
	f.condition.handle(event{kind: listed, rv: rv})
	return nil
}

// contradicts reports whether a list at the state's resourceVersion differs from the state. The
// elements are ordered by key.
func (f *feed) contradicts(elements []*watchcache.Element, rv uint64) bool {
	latest := f.state.Latest()
	if latest.RV() != rv {
		return false
	}
	var listed watchcache.Digest
	newest := uint64(0) // of this key's elements, the one that the state keeps
	for i, e := range elements {
		newest = max(newest, e.RV)
		if i+1 == len(elements) || elements[i+1].Key != e.Key {
			listed.Toggle(e.Key, newest)
			newest = 0
		}
	}
	return listed != latest.Digest()
}

// fail refuses all changes until the next list. We return no error to the Reflector, which would
// only log the object.
func (f *feed) fail(err error) {
	f.broken = true
	f.condition.handle(event{
		kind: changeRefused, err: faultf(err, "a change of %s could not be applied", f.config.GroupResource),
		gap: errors.Is(err, watchcache.ErrGap) || errors.Is(err, watchcache.ErrBackwards),
	})
}
