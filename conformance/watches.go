// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/ptr"
)

// watchClauses are about where a watch begins.
var watchClauses = []storeClause{
	{
		name: "WatchFromEachVersion",
		rule: "a watch from a resourceVersion is told everything that was written after it, and nothing else",
		run:  watchFromEachVersion,
	},
	{
		name:  "InitialEvents",
		rule:  "a watch with initial events begins with an ADDED for each object, then a bookmark says that they are complete, and every event after it is newer",
		needs: initialEvents,
		run:   watchWithInitialEvents,
	},
}

func watchFromEachVersion(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	h.write(t, f, s)
	from := h.versions()
	var watches []*observer
	for _, rv := range from {
		what := fmt.Sprintf("a watch from resourceVersion %d", rv)
		watches = append(watches, f.observe(t, s, what, Prefix, everything.since(rv)))
	}
	// The watch from the last version is told of this only.
	h.play(t, f, s, step{pod: "a/later"})
	for i, o := range watches {
		o.mustTell(t, h.after(from[i]))
	}
}

func watchWithInitialEvents(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	h.write(t, f, s)
	if !f.backend.progress() {
		f.get(t, s, endKey, version(h.last())) // a cache can't know that it will have it
	}
	opts := everything.since(h.last())
	opts.SendInitialEvents, opts.ResourceVersionMatch = ptr.To(true), metav1.ResourceVersionMatchNotOlderThan
	opts.Predicate.AllowWatchBookmarks = true
	o := f.observe(t, s, "a watch with initial events", Prefix, opts)

	bookmark := initialState(t, o, h)
	if bookmark.rv < h.last() {
		t.Errorf("the bookmark after the initial events is at %d, which is older than the last write, at %d", bookmark.rv, h.last())
	}
	at := len(h.changes)
	h.play(t, f, s, step{pod: "a/later"})
	h.play(t, f, s, step{pod: "a/later", remove: true})
	last := h.play(t, f, s, step{pod: "a/latest"})
	sameEvents(t, "the watch after its initial events", h.changes[at:], withoutBookmarks(o.until(t, last.key)))
}

// initialState reads initial events, which may come in any order, and the
// bookmark that ends them.
func initialState(t *testing.T, o *observer, h *history) event {
	t.Helper()
	want := h.at(h.last(), everything)
	var got []event
	for {
		e := o.next(t, fmt.Sprintf("%d initial events and a bookmark (it has brought %d events)", len(want), len(got)))
		switch {
		case e.kind == watch.Added:
			got = append(got, e)
			continue
		case e.kind != watch.Bookmark:
			t.Fatalf("%v came among the initial events, expected were ADDED for %d objects and a bookmark", e, len(want))
		case e.object.Annotations[metav1.InitialEventsAnnotationKey] != "true":
			t.Fatalf("%v came among the initial events, without the annotation %s", e, metav1.InitialEventsAnnotationKey)
		}
		slices.SortFunc(got, byKey)
		var expected []event
		for i := range want {
			expected = append(expected, event{kind: watch.Added, key: keyOf(t, &want[i]), rv: rvOf(t, &want[i]), object: &want[i]})
		}
		sameEvents(t, "the initial events", expected, got)
		return e
	}
}

// signalClauses are about what a watch tells the server beside events.
var signalClauses = []clause{{
	name: "InitializationSignal",
	rule: "a watch tells the server's flow control when it has begun, so that its seat is given to others",
	run:  signalInitialization,
}}

// signalInitialization does what the suite RunTestWatchInitializationSignal
// does, which waits for ever for a signal that does not come.
func signalInitialization(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	signal := flowcontrol.NewInitializationSignal()
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		signal.Wait()
	}()
	t.Cleanup(func() {
		signal.Signal() // ends the goroutine in any case
		<-begun
	})
	w, err := f.raw.Watch(flowcontrol.WithInitializationSignal(f.ctx, signal), Prefix, everything.since(h.start))
	if err != nil {
		t.Fatalf("a watch can't be opened: %v", err)
	}
	t.Cleanup(w.Stop)
	select {
	case <-begun:
	case <-time.After(f.patience):
		t.Fatalf("a watch has not signalled within %s that it is initialized", f.patience)
	}
}
