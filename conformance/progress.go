// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// progressClauses are about progress notifications: a bookmark at a
// resourceVersion is the promise that everything up to it was told. A cache
// that believes it serves reads from memory.
var progressClauses = []clause{
	{
		name:  "Progress",
		rule:  "after RequestWatchProgress a watch to which nothing happens gets a bookmark that is not older than the last write anywhere",
		needs: progress,
		run:   progressOfIdleWatch,
	},
	{
		name:  "ProgressOfIdleResource",
		rule:  "after RequestWatchProgress a watch of everything gets a bookmark that is not older than the last write to another resource",
		needs: progress | touch,
		run:   progressOfIdleResource,
	},
	{
		name:  "ProgressOrder",
		rule:  "a progress bookmark at a resourceVersion comes after every event up to it",
		needs: progress,
		run:   progressOrder,
	},
}

// notifying are the options of a watch as the cacher opens it.
func notifying(rv uint64) storage.ListOptions {
	opts := everything.since(rv)
	opts.ProgressNotify, opts.Predicate.AllowWatchBookmarks = true, true
	return opts
}

// progressInterval is the time between two requests while a bookmark does not
// come: a request that a watch is too new for is not answered.
const progressInterval = 50 * time.Millisecond

// untilProgress asks for progress until a bookmark is at rv or later, and
// returns what has come, that bookmark included.
func (f *fixture) untilProgress(t *testing.T, o *observer, rv uint64) (events []event) {
	t.Helper()
	again := time.NewTicker(progressInterval)
	defer again.Stop()
	late := time.After(f.patience)
	for {
		select {
		case e, ok := <-o.watch.ResultChan():
			if !ok {
				t.Fatalf("%s has ended where it must bring a bookmark at %d or later", o.what, rv)
			}
			events = append(events, seen(t, o.what, e))
			switch last := events[len(events)-1]; {
			case last.kind == watch.Error:
				t.Fatalf("%s has ended with %v where it must bring a bookmark at %d or later", o.what, last, rv)
			case last.kind == watch.Bookmark && last.rv >= rv:
				return events
			}
		case <-again.C:
			if err := f.raw.RequestWatchProgress(f.ctx); err != nil {
				t.Fatalf("RequestWatchProgress fails: %v", err)
			}
		case <-late:
			t.Fatalf("%s has not brought a bookmark at %d or later within %s, though progress was asked for all the time; it has brought\n%s",
				o.what, rv, f.patience, lines(events))
		}
	}
}

func progressOfIdleWatch(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	o := f.observe(t, f.raw, "a watch of a namespace without objects", Prefix+"idle", notifying(h.start))
	for _, step := range script[:5] {
		last := h.play(t, f, f.raw, step)
		noEventsBut(t, f.untilProgress(t, o, last.rv))
	}
}

func progressOfIdleResource(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	o := f.observe(t, f.raw, "a watch of everything", Prefix, notifying(h.start))
	for range 3 {
		noEventsBut(t, f.untilProgress(t, o, f.touch(t)))
	}
}

// touch moves the resourceVersion on without a Pod.
func (f *fixture) touch(t *testing.T) uint64 {
	t.Helper()
	rv, err := f.backend.Touch(f.ctx)
	if err != nil {
		t.Fatalf("Backend.Touch fails: %v", err)
	}
	return rv
}

// noEventsBut fails if there is anything but bookmarks, which don't go back.
func noEventsBut(t *testing.T, events []event) {
	t.Helper()
	for i, e := range events {
		if e.kind != watch.Bookmark {
			t.Fatalf("%v came to a watch that nothing has happened to", e)
		}
		if i > 0 && e.rv < events[i-1].rv {
			t.Fatalf("%v came after %v", e, events[i-1])
		}
	}
}

func progressOrder(t *testing.T, f *fixture) {
	h := f.begin(t, f.raw)
	scope := selected{key: Prefix + "a", recursive: true, predicate: storage.Everything}
	o := f.observe(t, f.raw, "a watch of a namespace", scope.key, notifying(h.start))
	var events []event
	for range 10 {
		for i := range 10 {
			h.play(t, f, f.raw, step{pod: fmt.Sprintf("a/%d", i%3)})
			if err := f.raw.RequestWatchProgress(f.ctx); err != nil {
				t.Fatalf("RequestWatchProgress fails: %v", err)
			}
		}
		// A watch is told of what comes after its own events.
		last := h.play(t, f, f.raw, step{pod: "b/1"})
		events = append(events, f.untilProgress(t, o, last.rv)...)
	}
	notOvertaken(t, events)
	sameEvents(t, "the events between the bookmarks", h.toldAfter(h.start, scope), withoutBookmarks(events))
}

// notOvertaken fails if a bookmark has promised that something would not come
// that did come.
func notOvertaken(t *testing.T, events []event) {
	t.Helper()
	var bookmark event
	for _, e := range events {
		switch {
		case e.kind == watch.Bookmark && e.rv < bookmark.rv:
			t.Fatalf("%v came after %v: bookmarks don't go back", e, bookmark)
		case e.kind == watch.Bookmark:
			bookmark = e
		case e.rv <= bookmark.rv:
			t.Fatalf("%v came after %v, which said that everything up to %d was told", e, bookmark, bookmark.rv)
		}
	}
}
