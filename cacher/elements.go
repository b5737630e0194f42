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

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/internal/heapsize"
	"github.com/kube-watchcache/watchcache/internal/minors"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// elementBuilder makes elements. It is for one goroutine at a time.
type elementBuilder struct {
	*base
	names watchcache.FieldNames
}

func newElementBuilder(b *base) *elementBuilder { return &elementBuilder{base: b} }

// timedObject is an object with the time at which storage decoded it, i.e.
// storage.WatchEventWithRecordTime of k8s.io/apiserver since v0.37.
type timedObject interface {
	apiruntime.Object
	RecordTime() time.Time
	Unwrap() apiruntime.Object
}

// key returns an object's key, and the object without wrappers.
func (b *elementBuilder) key(obj any) (key string, object apiruntime.Object, err error) {
	if timed, ok := obj.(timedObject); ok {
		obj = timed.Unwrap()
	}
	object, ok := obj.(apiruntime.Object)
	if !ok {
		return "", nil, faultf(nil, "storage returned a %T, which is no apiruntime.Object", obj)
	}
	if lost, ok := object.(capability.UnreadObject); ok {
		key, _ = lost.LastState()
		return key, object, nil
	}
	key, err = b.config.KeyFunc(object)
	if err != nil {
		return "", nil, faultf(err, "the key of a %T", object)
	}
	if prefix := b.config.ResourcePrefix; !strings.HasPrefix(key, prefix) {
		// We keep the object to apply its changes. Requests don't reach its key.
		b.journal.warn("stray", "An object has a key outside of the resource's prefix. The watch cache does not serve it",
			faultf(keyFaultf(nil, "the key is %q, ResourcePrefix is %q", key, prefix), "KeyFunc gives an object of %s a key outside of ResourcePrefix: it can't be read or watched", b.config.GroupResource), "let KeyFunc and ResourcePrefix fit each other, or look at how the object got its name")
	}
	return key, object, nil
}

func (b *elementBuilder) element(key string, object apiruntime.Object) (*watchcache.Element, error) {
	config := &b.config
	rv, err := config.Versioner.ObjectResourceVersion(object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the resourceVersion")
	}
	if lost, ok := object.(capability.UnreadObject); ok {
		_, lastRV := lost.LastState()
		return b.lastElement(key, rv, lastRV)
	}
	labelSet, fieldSet, err := config.GetAttrsFunc(object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the attributes at resourceVersion %d", rv)
	}
	return &watchcache.Element{
		Key: key, RV: rv, Object: object, Labels: labelSet,
		Fields: b.names.Compact(fieldSet), Size: sizeOf(object, labelSet),
	}, nil
}

// lastElement returns the element of a deletion at resourceVersion rv, from the cached
// object, which must be as of lastRV unless that is 0. If there is none the state refuses
// the deletion, unless it is a repetition.
func (b *elementBuilder) lastElement(key string, rv, lastRV uint64) (*watchcache.Element, error) {
	last, _ := b.state.Get(key)
	switch {
	case last == nil:
		return &watchcache.Element{Key: key, RV: rv, Object: b.config.NewFunc()}, nil
	case lastRV != 0 && last.RV != lastRV:
		return nil, faultf(keyFaultf(watchcache.ErrGap, "%q", key),
			"storage can't read what was deleted at resourceVersion %d as of resourceVersion %d, and the cache has it as of %d", rv, lastRV, last.RV)
	}
	object := last.Object.DeepCopyObject()
	if err := b.config.Versioner.UpdateObject(object, rv); err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the resourceVersion")
	}
	return &watchcache.Element{Key: key, RV: rv, Object: object, Labels: last.Labels, Fields: last.Fields, Size: last.Size}, nil
}

// changedElement returns the element for the object of an event. Of a deleted object,
// storage may have sent only the name.
func (b *elementBuilder) changedElement(typ watchcache.EventType, obj any) (*watchcache.Element, error) {
	key, object, err := b.key(obj)
	if err != nil {
		return nil, err
	}
	if _, lost := object.(capability.UnreadObject); lost || typ != watchcache.Deleted || !minors.OmitsPrevious() {
		return b.element(key, object)
	}
	rv, err := b.config.Versioner.ObjectResourceVersion(object)
	if err != nil {
		return nil, faultf(keyFaultf(err, "%q", key), "the resourceVersion")
	}
	return b.lastElement(key, rv, 0)
}

// elementOf returns the element for an object from storage's list.
func (b *elementBuilder) elementOf(obj any) (*watchcache.Element, error) {
	key, object, err := b.key(obj)
	if err != nil {
		return nil, err
	}
	return b.element(key, object)
}

// sizeOf estimates the memory of a decoded object and its labels, in bytes. It is an upper bound,
// since shared strings count each time.
func sizeOf(object apiruntime.Object, labelSet labels.Set) int64 {
	size := heapsize.Of(object)
	if _, ok := object.(apiruntime.Unstructured); ok {
		// Unstructured objects have no map[string]string of labels, so labelSet is a copy.
		size += heapsize.Of(labelSet)
	}
	return size
}

// loader builds the elements of a list while storage sends more. A free goroutine builds each
// batch, or the caller's if none is free. Call Add, then elements once, on one goroutine.
type loader struct {
	tasks *tasks.Group
	// own is for the caller's goroutine, spare for the others.
	own   *elementBuilder
	spare chan *elementBuilder

	open    []apiruntime.Object
	batches []*batch
	total   int            // in batches
	working sync.WaitGroup // on other goroutines
}

// batch is some objects of a list, then their elements in the same order.
type batch struct {
	objects  []apiruntime.Object
	elements []*watchcache.Element
	err      error
}

// batchSize is in objects. Building a batch takes much longer than starting a goroutine.
const batchSize = 256

func newLoader(tasks *tasks.Group, own *elementBuilder) *loader {
	spare := runtime.GOMAXPROCS(0) - 1
	l := &loader{tasks: tasks, own: own, spare: make(chan *elementBuilder, spare)}
	for range spare {
		l.spare <- newElementBuilder(own.base)
	}
	return l
}

// Add implements source.InitialState.
func (l *loader) Add(object apiruntime.Object) {
	if l.open == nil {
		l.open = make([]apiruntime.Object, 0, batchSize)
	}
	l.open = append(l.open, object)
	if len(l.open) == batchSize {
		l.buildOpen()
	}
}

// buildOpen builds the open batch, on another goroutine if one is free.
func (l *loader) buildOpen() {
	next := &batch{objects: l.open}
	l.batches = append(l.batches, next)
	l.total += len(next.objects)
	l.open = nil
	select {
	case builder := <-l.spare:
		l.working.Add(1)
		// Awaited by elements and by the group; ends with the batch.
		if l.tasks.Run(func() {
			defer l.working.Done()
			builder.build(next)
			l.spare <- builder
		}) {
			return
		}
		l.working.Done()
	default:
	}
	l.own.build(next)
}

// build builds a batch up to the first error.
func (b *elementBuilder) build(next *batch) {
	elements := make([]*watchcache.Element, 0, len(next.objects))
	for _, object := range next.objects {
		element, err := b.elementOf(object)
		if err != nil {
			next.err = err
			break
		}
		elements = append(elements, element)
	}
	next.objects = nil
	next.elements = elements
}

// elements returns the elements ordered by key.
func (l *loader) elements() ([]*watchcache.Element, error) {
	if len(l.open) > 0 {
		l.buildOpen()
	}
	l.working.Wait()
	elements := make([]*watchcache.Element, 0, l.total)
	for i, b := range l.batches {
		if b.err != nil {
			return nil, b.err
		}
		elements = append(elements, b.elements...)
		l.batches[i] = nil
	}
	byKey := func(a, b *watchcache.Element) int { return cmp.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(elements, byKey) {
		slices.SortStableFunc(elements, byKey)
	}
	return elements, nil
}
