// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// feed is where the Reflector puts what it hears: it computes each object's
// key and attributes, once, and applies the change to the state. It never
// waits for a watcher. All of it runs on the Reflector's goroutine.
//
// A change that can't be applied must not be skipped: the feed then takes
// nothing more and has everything listed anew.
type feed struct {
	engine *engine
	names  watchcache.FieldNames
	// broken is true from a change that could not be applied until the next
	// Replace.
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

// Resync implements cache.ReflectorStore. There is nothing to do: no one
// downstream depends on being told the same state again.
func (f *feed) Resync() error { return nil }

func (f *feed) apply(typ watchcache.EventType, obj any) error {
	if f.broken {
		return nil
	}
	received := f.engine.config.Clock.Now()
	recorded := received
	if timed, ok := obj.(storage.WatchEventWithRecordTime); ok {
		recorded = timed.RecordTime()
	}
	k, err := f.key(obj)
	if err != nil {
		f.fail(err)
		return nil
	}
	element, err := f.element(k)
	if err != nil {
		f.fail(err)
		return nil
	}
	applied, err := f.engine.state.Apply(watchcache.Change{
		Type: typ, Element: element, RV: element.RV,
		Recorded: recorded.UnixNano(), Received: received.UnixNano(),
	})
	if err != nil {
		f.fail(err)
		return nil
	}
	f.engine.metrics.Event(typ.String())
	f.engine.applied(applied)
	f.engine.freshness.reached(element.RV)
	f.engine.dispatcher.wakeUp()
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore: the storage's word that
// the watch has brought everything up to a version.
func (f *feed) Bookmark(resourceVersion string) error {
	if f.broken {
		return nil
	}
	rv, err := f.engine.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		f.fail(fmt.Errorf("a bookmark's resourceVersion %q: %w", resourceVersion, err))
		return nil
	}
	if err := f.engine.state.Progress(rv); err != nil {
		f.fail(err)
		return nil
	}
	f.engine.metrics.Event("BOOKMARK")
	f.engine.metrics.SetResourceVersion(rv)
	f.engine.freshness.reached(rv)
	return nil
}

// Replace implements cache.ReflectorStore: objs are the whole state.
func (f *feed) Replace(objs []any, resourceVersion string) error {
	start := f.engine.config.Clock.Now()
	rv, err := f.engine.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return fmt.Errorf("a list's resourceVersion %q: %w", resourceVersion, err)
	}
	elements, err := f.elements(objs)
	if err != nil {
		f.engine.readiness.failed(err)
		f.engine.noteError(err)
		return err
	}
	if !f.carry(elements, rv, start.UnixNano()) {
		if n := f.engine.state.Replace(elements, rv); n > 0 {
			f.engine.noteError(fmt.Errorf("%d listed objects of %s share a key with another one", n, f.engine.config.GroupResource))
		}
	}
	f.broken = false
	f.engine.replaced(rv)
	klog.V(2).InfoS("The watch cache has listed its resource", "resource", f.engine.config.GroupResource,
		"objects", len(elements), "resourceVersion", rv, "applying", f.engine.config.Clock.Since(start).Round(time.Microsecond))
	return nil
}

// carry takes a list as a continuation of the history so far, if that is
// configured and the list allows it.
func (f *feed) carry(elements []*watchcache.Element, rv uint64, received int64) bool {
	if !f.engine.config.CarryWatchersOverRelist || !f.engine.readiness.ready() {
		return false
	}
	_, err := f.engine.state.Carry(elements, rv, received, func(e *watchcache.Element) *watchcache.Element {
		return f.engine.convert.lastState(e, rv)
	})
	if err != nil {
		f.engine.noteError(fmt.Errorf("the watchers of %s could not be carried over a list: %w", f.engine.config.GroupResource, err))
	}
	return err == nil
}

// elements makes what the state holds for a list, in the order of keys. The
// Reflector streams a list in no order; made in that of their keys, elements
// lie in memory as they are read later on.
func (f *feed) elements(objs []any) ([]*watchcache.Element, error) {
	listed := make([]keyed, len(objs))
	for i, obj := range objs {
		var err error
		if listed[i], err = f.key(obj); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(listed, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	elements := make([]*watchcache.Element, len(listed))
	for i, l := range listed {
		var err error
		if elements[i], err = f.element(l); err != nil {
			return nil, err
		}
	}
	return elements, nil
}

// keyed is an object and its key.
type keyed struct {
	key    string
	object runtime.Object
}

// key takes what the storage's watch or list brought for an object.
func (f *feed) key(obj any) (keyed, error) {
	if timed, ok := obj.(storage.WatchEventWithRecordTime); ok {
		obj = timed.Unwrap()
	}
	object, ok := obj.(runtime.Object)
	if !ok {
		return keyed{}, fmt.Errorf("storage brought a %T, which is no runtime.Object", obj)
	}
	key, err := f.engine.config.KeyFunc(object)
	if err != nil {
		return keyed{}, fmt.Errorf("the key of a %T: %w", object, err)
	}
	return keyed{key: key, object: object}, nil
}

// element makes what the state holds for an object.
func (f *feed) element(k keyed) (*watchcache.Element, error) {
	config := &f.engine.config
	rv, err := config.Versioner.ObjectResourceVersion(k.object)
	if err != nil {
		return nil, fmt.Errorf("the resourceVersion of %q: %w", k.key, err)
	}
	labels, fields, err := config.GetAttrsFunc(k.object)
	if err != nil {
		return nil, fmt.Errorf("the attributes of %q at resourceVersion %d: %w", k.key, rv, err)
	}
	return &watchcache.Element{
		Key: k.key, RV: rv, Object: k.object, Labels: labels,
		Fields: f.names.Compact(fields), Size: sizeOf(k.object),
	}, nil
}

// fail refuses a change and everything after it, until all is listed anew. The
// Reflector is not told: it would log the object, which may be a secret, and
// go on as if nothing was.
func (f *feed) fail(err error) {
	err = fmt.Errorf("a change of %s could not be applied: %w", f.engine.config.GroupResource, err)
	f.broken = true
	f.engine.noteError(err)
	f.engine.source.listAnew(err)
}
