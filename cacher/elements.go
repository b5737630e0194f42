// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/internal/heapsize"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// maker makes the state's elements of objects. It is for one goroutine at a time.
type maker struct {
	config *Config
	state  *watchcache.State
	warn   func(kind, message string, err error, remedy string)
	names  watchcache.FieldNames
}

// timedObject is an object of a storage's watch together with the time at which it was
// decoded: storage.WatchEventWithRecordTime, which k8s.io/apiserver has since v0.37.
type timedObject interface {
	apiruntime.Object
	RecordTime() time.Time
	Unwrap() apiruntime.Object
}

// key returns an object from storage's watch or list, and its key.
func (m *maker) key(obj any) (key string, object apiruntime.Object, err error) {
	if timed, ok := obj.(timedObject); ok {
		obj = timed.Unwrap()
	}
	object, ok := obj.(apiruntime.Object)
	if !ok {
		return "", nil, faultf(nil, "storage brought a %T, which is no apiruntime.Object", obj)
	}
	if lost, ok := object.(capability.UnreadObject); ok {
		key, _ = lost.LastState()
		return key, object, nil
	}
	if key, err = m.config.KeyFunc(object); err != nil {
		return "", nil, faultf(err, "the key of a %T", object)
	}
	if prefix := m.config.ResourcePrefix; !strings.HasPrefix(key, prefix) {
		// The object is kept, so that its changes fit and versions go on, but
		// requests for the resource's keys don't reach it.
		m.warn("stray", "An object has a key outside of the resource's prefix. The watch cache does not serve it",
			faultf(keyFaultf(nil, "the key is %q, ResourcePrefix is %q", key, prefix), "KeyFunc gives an object of %s a key outside of ResourcePrefix: it can't be read or watched", m.config.GroupResource), "let KeyFunc and ResourcePrefix fit each other, or look at how the object got its name")
	}
	return key, object, nil
}

// element makes the state's element of an object with a key.
func (m *maker) element(key string, object apiruntime.Object) (*watchcache.Element, error) {
	config := m.config
	rv, err := config.Versioner.ObjectResourceVersion(object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the resourceVersion")
	}
	if lost, ok := object.(capability.UnreadObject); ok {
		return m.lastElement(lost, rv)
	}
	labels, fields, err := config.GetAttrsFunc(object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the attributes at resourceVersion %d", rv)
	}
	return &watchcache.Element{
		Key: key, RV: rv, Object: object, Labels: labels,
		Fields: m.names.Compact(fields), Size: sizeOf(object, labels),
	}, nil
}

// lastElement makes the element of a deletion at the resourceVersion rv from the last
// state that the cache has. Without one the state refuses the deletion, unless it has
// seen it before.
func (m *maker) lastElement(lost capability.UnreadObject, rv uint64) (*watchcache.Element, error) {
	key, of := lost.LastState()
	last, _ := m.state.Get(key)
	switch {
	case last == nil:
		return &watchcache.Element{Key: key, RV: rv, Object: m.config.NewFunc()}, nil
	case last.RV != of:
		return nil, faultf(keyFaultf(watchcache.ErrGap, "%q", key),
			"storage can't read what was deleted at resourceVersion %d as of resourceVersion %d, and the cache has it as of %d", rv, of, last.RV)
	}
	object := last.Object.DeepCopyObject()
	if err := m.config.Versioner.UpdateObject(object, rv); err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the resourceVersion")
	}
	return &watchcache.Element{Key: key, RV: rv, Object: object, Labels: last.Labels, Fields: last.Fields, Size: last.Size}, nil
}

// elementOf makes the element of an object from storage's watch or list.
func (m *maker) elementOf(obj any) (*watchcache.Element, error) {
	key, object, err := m.key(obj)
	if err != nil {
		return nil, err
	}
	return m.element(key, object)
}

// sizeOf estimates the memory that a decoded object takes together with its labels, in
// bytes. Shared strings count each time, so the estimate is an upper bound.
func sizeOf(object apiruntime.Object, labels labels.Set) int64 {
	size := heapsize.Of(object)
	if _, ok := object.(apiruntime.Unstructured); ok {
		// Such an object has no map of strings for its labels: they were copied
		// to one.
		size += heapsize.Of(labels)
	}
	return size
}

// fill makes elements of the objects of storage's whole state while storage still brings
// others. A batch is given to another goroutine if one is free, and otherwise done by the
// goroutine that brings the objects, so that nothing waits. One goroutine calls Add and
// Change; elements is called after that, once.
type fill struct {
	tasks *tasks.Group
	// own belongs to the goroutine that brings the objects, spare has the makers of the
	// other goroutines.
	own   *maker
	spare chan *maker

	open    []apiruntime.Object
	batches []*batch
	total   int
	// changes are the events since the first one that does not add an object.
	changes []watch.Event
	working sync.WaitGroup // the batches that other goroutines do
}

// batch is some objects, and later their elements in the same order.
type batch struct {
	objects  []apiruntime.Object
	elements []*watchcache.Element
	err      error
}

// batchSize is the number of objects in a batch, which takes far more time than starting
// a goroutine.
const batchSize = 256

func newFill(tasks *tasks.Group, newMaker func() *maker) *fill {
	spare := runtime.GOMAXPROCS(0) - 1
	f := &fill{tasks: tasks, own: newMaker(), spare: make(chan *maker, spare)}
	for range spare {
		f.spare <- newMaker()
	}
	return f
}

// Add implements source.Fill.
func (f *fill) Add(object apiruntime.Object) {
	if f.changes != nil {
		f.changes = append(f.changes, watch.Event{Type: watch.Added, Object: object})
		return
	}
	if f.open == nil {
		f.open = make([]apiruntime.Object, 0, batchSize)
	}
	f.open = append(f.open, object)
	if len(f.open) == batchSize {
		f.do()
	}
}

// Change implements source.Fill.
func (f *fill) Change(event watch.Event) { f.changes = append(f.changes, event) }

// do has the open batch done.
func (f *fill) do() {
	b := &batch{objects: f.open}
	f.batches, f.open, f.total = append(f.batches, b), nil, f.total+len(b.objects)
	select {
	case m := <-f.spare:
		f.working.Add(1)
		// Awaited by elements and by the group; ends with the batch.
		if f.tasks.Run(func() {
			defer f.working.Done()
			m.do(b)
			f.spare <- m
		}) {
			return
		}
		f.working.Done()
	default:
	}
	f.own.do(b)
}

// do makes the elements of a batch, up to the first error.
func (m *maker) do(b *batch) {
	elements := make([]*watchcache.Element, 0, len(b.objects))
	for _, object := range b.objects {
		var e *watchcache.Element
		if e, b.err = m.elementOf(object); b.err != nil {
			break
		}
		elements = append(elements, e)
	}
	b.objects, b.elements = nil, elements
}

// elements returns the elements in the order of their keys.
func (f *fill) elements() ([]*watchcache.Element, error) {
	if len(f.open) > 0 {
		f.do()
	}
	f.working.Wait()
	elements := make([]*watchcache.Element, 0, f.total)
	for i, b := range f.batches {
		if b.err != nil {
			return nil, b.err
		}
		elements = append(elements, b.elements...)
		f.batches[i] = nil
	}
	elements, err := f.changed(elements)
	if err != nil {
		return nil, err
	}
	byKey := func(a, b *watchcache.Element) int { return cmp.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(elements, byKey) {
		slices.SortStableFunc(elements, byKey)
	}
	return elements, nil
}

// changed applies the changes to the elements that were added before them.
func (f *fill) changed(elements []*watchcache.Element) ([]*watchcache.Element, error) {
	if len(f.changes) == 0 {
		return elements, nil
	}
	last := make(map[string]*watchcache.Element, len(f.changes)) // nil: deleted
	for _, event := range f.changes {
		key, object, err := f.own.key(event.Object)
		if err != nil {
			return nil, err
		}
		if last[key] = nil; event.Type == watch.Deleted {
			continue
		}
		if last[key], err = f.own.element(key, object); err != nil {
			return nil, err
		}
	}
	f.changes = nil
	elements = slices.DeleteFunc(elements, func(e *watchcache.Element) bool {
		_, changed := last[e.Key]
		return changed
	})
	for _, e := range last {
		if e != nil {
			elements = append(elements, e)
		}
	}
	return elements, nil
}
