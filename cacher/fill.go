// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"runtime"
	"slices"
	"sync"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// fill makes elements of the objects of storage's whole state while storage still
// brings others of them. Objects are taken in batches; a batch is given to another
// goroutine if one is free, and is otherwise done by the goroutine that brings the
// objects, so that nothing waits.
//
// One goroutine calls Add and Change; whoever calls elements does so after the last
// of these calls, once.
type fill struct {
	tasks *tasks.Group
	// own belongs to the goroutine that brings the objects. spare has the makers of the
	// other goroutines, GOMAXPROCS-1 of them; each goroutine returns its maker.
	own   *maker
	spare chan *maker

	open    []apiruntime.Object
	batches []*batch
	total   int
	// changes are the events since the first one that does not add an object.
	changes []watch.Event
	working sync.WaitGroup // the batches that other goroutines do
}

// batch is some objects, and later their elements in the same order, as far as
// elements could be made of them.
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
	gone := make(map[string]int, len(f.changes)) // up to which element
	for _, event := range f.changes {
		k, err := f.own.key(event.Object)
		if err != nil {
			return nil, err
		}
		gone[k.key] = len(elements)
		if event.Type == watch.Deleted {
			continue
		}
		e, err := f.own.elementOf(event.Object)
		if err != nil {
			return nil, err
		}
		elements = append(elements, e)
	}
	f.changes = nil
	kept := elements[:0]
	for i, e := range elements {
		if before, changed := gone[e.Key]; !changed || i >= before {
			kept = append(kept, e)
		}
	}
	clear(elements[len(kept):])
	return kept, nil
}
