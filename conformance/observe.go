// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// event is what a watcher is told, and what it ought to be told.
type event struct {
	kind watch.EventType
	rv   uint64
	key  string // "" of bookmarks and errors
	// object is the content that the event carries. Of a deletion it is the
	// last one, with the deletion's resourceVersion.
	object *example.Pod
	err    error // of an ERROR
}

func (e event) String() string {
	switch e.kind {
	case watch.Error:
		return fmt.Sprintf("ERROR %v", e.err)
	case watch.Bookmark:
		return fmt.Sprintf("BOOKMARK at %d %v", e.rv, e.object.Annotations)
	}
	return fmt.Sprintf("%s %s at %d (labels %v, node %q, phase %q, annotations %v, uid %q)", e.kind, e.key, e.rv,
		e.object.Labels, e.object.Spec.NodeName, e.object.Status.Phase, e.object.Annotations, e.object.UID)
}

// observer reads one watch, and fails the test if what is sure to come does
// not, or the watch ends.
type observer struct {
	what     string
	watch    watch.Interface
	patience time.Duration
	done     <-chan struct{}
}

// selected is a watch's scope and selection.
type selected struct {
	key       string
	recursive bool
	predicate storage.SelectionPredicate
}

var everything = selected{key: Prefix, recursive: true, predicate: storage.Everything}

// since are the options of a watch of everything after rv.
func (s selected) since(rv uint64) storage.ListOptions {
	return storage.ListOptions{ResourceVersion: version(rv), Recursive: s.recursive, Predicate: s.predicate}
}

// observe opens a watch that is stopped with the test.
func (f *fixture) observe(t *testing.T, s storage.Interface, what, key string, opts storage.ListOptions) *observer {
	t.Helper()
	o, err := f.tryObserve(t, s, what, key, opts)
	if err != nil {
		t.Fatalf("%s can't be opened: %v", what, err)
	}
	return o
}

func (f *fixture) tryObserve(t *testing.T, s storage.Interface, what, key string, opts storage.ListOptions) (*observer, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	t.Cleanup(cancel)
	w, err := s.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	t.Cleanup(w.Stop)
	return &observer{what: what, watch: w, patience: f.patience, done: f.ctx.Done()}, nil
}

// next returns the next event, whatever it is. want says what the test waits
// for.
func (o *observer) next(t *testing.T, want string) event {
	t.Helper()
	e, open := o.last(t, want)
	if !open {
		t.Fatalf("%s has ended, without an ERROR, where it must bring %s", o.what, want)
	}
	return e
}

// last is next for a watch that may have ended; then open is false.
func (o *observer) last(t *testing.T, want string) (e event, open bool) {
	t.Helper()
	select {
	case e, ok := <-o.watch.ResultChan():
		if !ok {
			return event{}, false
		}
		return seen(t, o.what, e), true
	case <-time.After(o.patience):
		t.Fatalf("%s has brought nothing for %s where it must bring %s", o.what, o.patience, want)
	case <-o.done:
		t.Fatalf("%s has not brought %s when the clause's time was over", o.what, want)
	}
	panic("not reached")
}

// until returns all events up to that of a key, bookmarks included. An ERROR
// fails the test.
func (o *observer) until(t *testing.T, key string) (events []event) {
	t.Helper()
	for {
		e := o.next(t, fmt.Sprintf("an event of %s (it has brought %d events before)", key, len(events)))
		if e.kind == watch.Error {
			t.Fatalf("%s has ended with %v where it must bring an event of %s", o.what, e, key)
		}
		events = append(events, e)
		if e.key == key {
			return events
		}
	}
}

// wrapped is storage.WatchEventWithRecordTime, which k8s.io/apiserver has since v0.37.
type wrapped interface {
	RecordTime() time.Time
	Unwrap() runtime.Object
}

// seen turns what came into an event.
func seen(t *testing.T, what string, e watch.Event) event {
	t.Helper()
	if e.Type == watch.Error {
		return event{kind: e.Type, err: apierrors.FromObject(e.Object)}
	}
	object := e.Object
	if c, ok := object.(runtime.CacheableObject); ok {
		object = c.GetObject()
	}
	if timed, ok := object.(wrapped); ok {
		object = timed.Unwrap()
	}
	pod, ok := object.(*example.Pod)
	if !ok {
		t.Fatalf("%s has brought %s with a %T, want a %T", what, e.Type, object, pod)
	}
	out := event{kind: e.Type, rv: rvOf(t, pod), object: pod}
	if e.Type != watch.Bookmark {
		out.key = keyOf(t, pod)
	}
	return out
}

// withoutBookmarks returns the events that are changes.
func withoutBookmarks(events []event) (out []event) {
	for _, e := range events {
		if e.kind != watch.Bookmark {
			out = append(out, e)
		}
	}
	return out
}
