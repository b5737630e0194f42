// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// initialEvents sends the snapshot's elements as ADDED. It returns false if the watcher ended.
func (r *replayer) initialEvents(endBookmark bool) bool {
	snapshot := r.snapshot
	r.snapshot = nil
	ok, sent := true, 0
	send := func(event watch.Event) bool {
		if ok = r.send(event); ok {
			sent++
		}
		return ok
	}
	runs := r.watcher.encoder
	ended := func() bool { // called for each element, matching or not
		r.scanned.Add(1)
		return r.ended()
	}
	scanned := r.Indexes.Scan(snapshot, &r.watcher.group.Query, "", ended, func(e *watchcache.Element) bool {
		if runs == nil {
			return send(watch.Event{Type: watch.Added, Object: e.Object.DeepCopyObject()})
		}
		r.sendRun(runs.Add(e), send)
		return ok && !r.ended()
	})
	if runs != nil {
		if last := runs.End(); ok { // called in any case: it releases the elements
			r.sendRun(last, send)
		}
	}
	ok = ok && !r.ended()
	r.Metrics.Initial(sent)
	r.Metrics.Processed(scanned.Evaluated)
	if ok && endBookmark {
		ok = r.initialEventsEnd(snapshot.RV())
	}
	if ok {
		r.initial.Store(false)
	}
	return ok
}

func (r *replayer) initialEventsEnd(rv uint64) bool {
	if r.Unverified() {
		return r.fail(apierrors.NewResourceExpired("the initial events are of a state that was found to be wrong: list and watch again"))
	}
	event, err := r.bookmark(rv, true)
	if err != nil {
		// The client would wait forever for it.
		r.Warn("initial", "The end of initial events could not be marked. The watch cache ends the watch", err, remedyType)
		return r.fail(apierrors.NewInternalError(errors.New("the end of the initial events could not be marked")))
	}
	if !r.send(event) {
		return false
	}
	r.watcher.delivered.bookmark(rv)
	return true
}

// WatchEncoder encodes the initial events of one watch, in runs. Its methods are called from the
// replayer's goroutine.
type WatchEncoder interface {
	// Add appends an element. If it begins a new run, Add returns the previous one, otherwise nil.
	Add(*watchcache.Element) EventRun
	// End returns the last run, nil if it is empty.
	End() EventRun
}

// EventRun is consecutive initial events of one watch. Its methods are safe for concurrent use.
type EventRun interface {
	// Elements returns the elements of the events. Caller must not write to the slice.
	Elements() []*watchcache.Element
	// Write writes the event of the element at index in the format id, in one call of w.Write and
	// with the bytes of encode, which must not depend on earlier events. known is true if the run
	// did not encode the event. If ok is false, Write wrote nothing and the caller encodes the
	// event.
	Write(index int, id string, encode func(*watchcache.Element, io.Writer) error, w io.Writer) (known, ok bool, err error)
}

// initial is the object of an initial event. It shares serializations by run; an event outside a
// run shares its own, like events from the window.
type initial struct {
	object
	run EventRun
	at  int
}

var _ runtime.CacheableObject = (*initial)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *initial) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if !shuffles(string(id)) && !isTable(string(id)) {
		known, ok, err := o.run.Write(o.at, string(id), func(e *watchcache.Element, w io.Writer) error {
			return encode(e.Object.DeepCopyObject(), w)
		}, w)
		if ok {
			o.encodings.metrics.Encoded(known)
			return err
		}
	}
	return o.object.CacheEncode(id, encode, w)
}

// sendRun calls send with each initial event of a run, which may be nil, until send returns false.
func (f *Fanout) sendRun(r EventRun, send func(watch.Event) bool) {
	if r == nil {
		return
	}
	elements := r.Elements()
	objects := make([]initial, len(elements))
	for i, e := range elements {
		objects[i] = initial{object: f.object(e), run: r, at: i}
		if !send(watch.Event{Type: watch.Added, Object: &objects[i]}) {
			return
		}
	}
}
