// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// eventClauses are about what a watch of everything is told of each write. All
// play the same script; each looks at one side of it.
var eventClauses = []storeClause{
	{
		name: "EventOnce",
		rule: "every write is told to a watch as one event, no more and no less",
		run:  told(once),
	},
	{
		name: "EventOrder",
		rule: "the events of a watch come in the order of their resourceVersions",
		run:  told(inOrder),
	},
	{
		name: "EventTypes",
		rule: "ADDED is told of a key that was not there, MODIFIED of one that was, DELETED of one that is gone",
		run:  told(typed),
	},
	{
		name: "EventContent",
		rule: "ADDED and MODIFIED carry the object as it was written, with the write's resourceVersion",
		run:  told(complete),
	},
	{
		name: "DeletedEvent",
		rule: "DELETED carries the last content of the object with the resourceVersion of the deletion",
		run:  told(deleted),
	},
}

// told plays the script to a watch that was there before and hands over what
// was written and what the watch was told.
func told(judge func(t *testing.T, h *history, got []event)) func(*testing.T, *fixture, storage.Interface) {
	return func(t *testing.T, f *fixture, s storage.Interface) {
		h := f.begin(t, s)
		o := f.observe(t, s, "a watch of everything", Prefix, everything.since(h.start))
		h.write(t, f, s)
		judge(t, h, withoutBookmarks(o.until(t, endKey)))
	}
}

// of names the write that an event is about.
func of(e event) string {
	what := "write"
	if e.kind == watch.Deleted {
		what = "removal after write"
	}
	return fmt.Sprintf("%s %s %s", e.key, what, e.object.Annotations["write"])
}

func once(t *testing.T, h *history, got []event) {
	count := map[string]int{}
	for _, e := range got {
		count[of(e)]++
	}
	for _, e := range h.changes {
		switch n := count[of(e)]; {
		case n == 0:
			t.Errorf("there was no event for %v; the events were\n%s", e, lines(got))
		case n > 1:
			t.Errorf("there were %d events for %v; the events were\n%s", n, e, lines(got))
		}
		delete(count, of(e))
	}
	for what, n := range count {
		t.Errorf("there were %d events for %s, which was not written", n, what)
	}
}

func inOrder(t *testing.T, _ *history, got []event) {
	for i := 1; i < len(got); i++ {
		if got[i].rv <= got[i-1].rv {
			t.Errorf("%v came after %v: its resourceVersion is not above", got[i], got[i-1])
		}
	}
}

func typed(t *testing.T, h *history, got []event) {
	there := map[string]bool{}
	for _, e := range got {
		want := watch.Added
		switch {
		case e.kind == watch.Deleted && there[e.key]:
			want = watch.Deleted
		case there[e.key]:
			want = watch.Modified
		}
		if e.kind != want {
			t.Errorf("%v came where the key was there before: %t; expected was %s", e, there[e.key], want)
		}
		there[e.key] = e.kind != watch.Deleted
	}
	for key, is := range there {
		if want := h.now[key] != nil; is != want {
			t.Errorf("after all events %s is there: %t; in the storage it is: %t", key, is, want)
		}
	}
}

func complete(t *testing.T, h *history, got []event) {
	written := map[string]event{}
	for _, e := range h.changes {
		written[of(e)] = e
	}
	for _, e := range got {
		if want := written[of(e)]; e.kind != watch.Deleted && (want.object == nil || e.rv != want.rv || !samePod(want.object, e.object)) {
			t.Errorf("the event is\n  %v, written was\n  %v", e, want)
		}
	}
}

func deleted(t *testing.T, h *history, got []event) {
	byKey := map[string][]event{}
	for _, e := range got {
		if e.kind == watch.Deleted {
			byKey[e.key] = append(byKey[e.key], e)
		}
	}
	for _, want := range h.changes {
		if want.kind != watch.Deleted {
			continue
		}
		if len(byKey[want.key]) == 0 {
			t.Errorf("there was no DELETED for %v; the events were\n%s", want, lines(got))
			continue
		}
		e := byKey[want.key][0]
		byKey[want.key] = byKey[want.key][1:]
		if e.rv != want.rv || !samePod(want.object, e.object) {
			t.Errorf("the event is\n  %v, expected was\n  %v", e, want)
		}
	}
}
