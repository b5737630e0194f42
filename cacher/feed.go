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
	cacher *Cacher
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
	received := f.cacher.config.Clock.Now()
	recorded := received
	if timed, ok := obj.(storage.WatchEventWithRecordTime); ok {
		recorded, obj = timed.RecordTime(), timed.Unwrap()
	}
	element, err := f.element(obj)
	if err != nil {
		f.fail(err)
		return nil
	}
	applied, err := f.cacher.state.Apply(watchcache.Change{
		Type: typ, Element: element, RV: element.RV,
		Recorded: recorded.UnixNano(), Received: received.UnixNano(),
	})
	if err != nil {
		f.fail(err)
		return nil
	}
	f.cacher.metrics.Event(typ.String())
	f.cacher.applied(applied)
	f.cacher.freshness.reached(element.RV)
	f.cacher.dispatcher.wakeUp()
	return nil
}

// Bookmark implements cache.ReflectorBookmarkStore: the storage's word that
// the watch has brought everything up to a version.
func (f *feed) Bookmark(resourceVersion string) error {
	if f.broken {
		return nil
	}
	rv, err := f.cacher.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		f.fail(fmt.Errorf("a bookmark's resourceVersion %q: %w", resourceVersion, err))
		return nil
	}
	if err := f.cacher.state.Progress(rv); err != nil {
		f.fail(err)
		return nil
	}
	f.cacher.metrics.Event("BOOKMARK")
	f.cacher.metrics.SetResourceVersion(rv)
	f.cacher.freshness.reached(rv)
	return nil
}

// Replace implements cache.ReflectorStore: objs are the whole state.
func (f *feed) Replace(objs []any, resourceVersion string) error {
	start := f.cacher.config.Clock.Now()
	rv, err := f.cacher.config.Versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return fmt.Errorf("a list's resourceVersion %q: %w", resourceVersion, err)
	}
	elements, err := f.elements(objs)
	if err != nil {
		f.cacher.readiness.failed(err)
		f.cacher.noteError(err)
		return err
	}
	if !f.carry(elements, rv, start.UnixNano()) {
		if n := f.cacher.state.Replace(elements, rv); n > 0 {
			f.cacher.noteError(fmt.Errorf("%d listed objects of %s share a key with another one", n, f.cacher.config.GroupResource))
		}
	}
	f.broken = false
	f.cacher.replaced(rv)
	klog.V(2).InfoS("The watch cache has listed its resource", "resource", f.cacher.config.GroupResource,
		"objects", len(elements), "resourceVersion", rv, "applying", f.cacher.config.Clock.Since(start).Round(time.Microsecond))
	return nil
}

// carry takes a list as a continuation of the history so far, if that is
// configured and the list allows it.
func (f *feed) carry(elements []*watchcache.Element, rv uint64, received int64) bool {
	if !f.cacher.config.CarryWatchersOverRelist || !f.cacher.readiness.ready() {
		return false
	}
	_, err := f.cacher.state.Carry(elements, rv, received, func(e *watchcache.Element) *watchcache.Element {
		return f.cacher.convert.lastState(e, rv)
	})
	if err != nil {
		f.cacher.noteError(fmt.Errorf("the watchers of %s could not be carried over a list: %w", f.cacher.config.GroupResource, err))
	}
	return err == nil
}

// elements makes what the state holds for a list, in the order of keys. The
// Reflector streams a list in no order; made in that of their keys, elements
// lie in memory as they are read later on.
func (f *feed) elements(objs []any) ([]*watchcache.Element, error) {
	type listed struct {
		key    string
		object any
	}
	inOrder := make([]listed, 0, len(objs))
	for _, obj := range objs {
		if timed, ok := obj.(storage.WatchEventWithRecordTime); ok {
			obj = timed.Unwrap()
		}
		key := ""
		if object, ok := obj.(runtime.Object); ok {
			key, _ = f.cacher.config.KeyFunc(object) // element reports what is wrong
		}
		inOrder = append(inOrder, listed{key: key, object: obj})
	}
	slices.SortStableFunc(inOrder, func(a, b listed) int { return cmp.Compare(a.key, b.key) })
	elements := make([]*watchcache.Element, 0, len(objs))
	for _, l := range inOrder {
		element, err := f.element(l.object)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	return elements, nil
}

// element makes what the state holds for an object.
func (f *feed) element(obj any) (*watchcache.Element, error) {
	if timed, ok := obj.(storage.WatchEventWithRecordTime); ok {
		obj = timed.Unwrap()
	}
	object, ok := obj.(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("the storage's watch brought a %T, which is no runtime.Object", obj)
	}
	config := &f.cacher.config
	rv, err := config.Versioner.ObjectResourceVersion(object)
	if err != nil {
		return nil, fmt.Errorf("the resourceVersion of a %T: %w", object, err)
	}
	key, err := config.KeyFunc(object)
	if err != nil {
		return nil, fmt.Errorf("the key of a %T at resourceVersion %d: %w", object, rv, err)
	}
	labels, fields, err := config.GetAttrsFunc(object)
	if err != nil {
		return nil, fmt.Errorf("the attributes of %q at resourceVersion %d: %w", key, rv, err)
	}
	return &watchcache.Element{
		Key: key, RV: rv, Object: object, Labels: labels,
		Fields: f.names.Compact(fields), Size: sizeOf(object),
	}, nil
}

// fail refuses a change and everything after it, until all is listed anew. The
// Reflector is not told: it would log the object, which may be a secret, and
// go on as if nothing was.
func (f *feed) fail(err error) {
	err = fmt.Errorf("a change of %s could not be applied: %w", f.cacher.config.GroupResource, err)
	f.broken = true
	f.cacher.noteError(err)
	f.cacher.source.listAnew(err)
}
