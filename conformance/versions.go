// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// versionClauses are about the versions that reads and writes are at.
var versionClauses = []storeClause{
	{
		name: "ExactList",
		rule: "a LIST at exactly a resourceVersion returns what was there then, and that resourceVersion",
		run:  listAtEachVersion,
	},
	{
		name: "ExactPages",
		rule: "the pages of a LIST are of one resourceVersion, whatever is written between them, and say how many objects remain",
		run:  pageAtEachVersion,
	},
	{
		name: "ReadYourWrites",
		rule: "a GET and a LIST without a resourceVersion return every write that was finished before",
		run:  readYourWrites,
	},
	{
		name: "CurrentVersion",
		rule: "GetCurrentResourceVersion is never below that of a finished write, and always below that of the next",
		run:  currentVersion,
	},
}

func listAtEachVersion(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	h.write(t, f, s)
	for _, rv := range h.versions() {
		for _, sel := range []selected{
			everything,
			{key: Prefix + "a", recursive: true, predicate: storage.Everything},
			{key: Prefix, recursive: true, predicate: poddata.Predicate("app=x", "")},
		} {
			what := fmt.Sprintf("a LIST of %s at exactly %d with label selector %q", sel.key, rv, sel.predicate.Label)
			opts, list := exactly(rv).options(), &example.PodList{}
			opts.Predicate = sel.predicate
			if err := s.GetList(f.ctx, sel.key, opts, list); err != nil {
				t.Fatalf("%s fails: %v", what, err)
			}
			if list.ResourceVersion != version(rv) {
				t.Errorf("%s says that it is at %q", what, list.ResourceVersion)
			}
			samePods(t, what, h.at(rv, sel), list.Items)
		}
	}
}

func pageAtEachVersion(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	h.write(t, f, s)
	for _, rv := range h.versions() {
		first := exactly(rv)
		pages(t, f, s, h, first, rv)
	}
	pages(t, f, s, h, at{}, h.last())
}

// pages reads a list in pages of two and writes between them. The list is of
// the state at rv.
func pages(t *testing.T, f *fixture, s storage.Interface, h *history, first at, rv uint64) {
	t.Helper()
	const limit = 2
	want := h.at(rv, everything)
	var got []example.Pod
	var listed uint64
	for what := (at{rv: first.rv, match: first.match, limit: limit}); ; {
		list := f.list(t, s, Prefix, what)
		page := fmt.Sprintf("the page from object %d of a LIST at %d (asked for with %+v)", len(got), rv, what)
		if listed == 0 {
			listed = rvOfList(t, list)
		}
		if now := rvOfList(t, list); now != listed || (first.rv > 0 && now != rv) || now < rv {
			t.Fatalf("%s is at %d, the first one was at %d", page, now, listed)
		}
		got = append(got, list.Items...)
		rest := len(want) - len(got)
		if full := len(list.Items) == limit; len(list.Items) > limit || (!full && rest > 0) {
			t.Fatalf("%s has %d objects, the limit is %d, and %d remain", page, len(list.Items), limit, rest)
		}
		if (list.Continue != "") != (rest > 0) {
			t.Fatalf("%s has the continue token %q, and %d objects remain", page, list.Continue, rest)
		}
		remaining := int64(0)
		if list.RemainingItemCount != nil {
			remaining = *list.RemainingItemCount
		}
		if remaining != int64(rest) {
			t.Fatalf("%s says that %d objects remain, it is %d", page, remaining, rest)
		}
		if rest <= 0 {
			break
		}
		what = at{limit: limit, next: list.Continue}
		h.play(t, f, s, step{pod: "a/0"})
		h.play(t, f, s, step{pod: "a/0", remove: true})
		h.play(t, f, s, step{pod: "b/9"})
		h.play(t, f, s, step{pod: "b/9", remove: true})
	}
	samePods(t, fmt.Sprintf("the pages of a LIST at %d", rv), want, got)
}

func readYourWrites(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	for _, step := range script {
		readNow(t, f, s, h, h.play(t, f, s, step))
	}
}

// readNow reads at once what was written last.
func readNow(t *testing.T, f *fixture, s storage.Interface, h *history, last event) {
	t.Helper()
	got := &example.Pod{}
	err := s.Get(f.ctx, last.key, storage.GetOptions{}, got)
	switch want := h.now[last.key]; {
	case want == nil && !storage.IsNotFound(err):
		t.Fatalf("a GET of %s after it was deleted at %d returns %q and %v, want \"not found\"", last.key, last.rv, got.Name, err)
	case want != nil && err != nil:
		t.Fatalf("a GET of %s after it was written at %d fails: %v", last.key, last.rv, err)
	case want != nil && !samePod(want, got):
		t.Fatalf("a GET after the write of\n  %v returns\n  %v", last, listed(t, []example.Pod{*got})[0])
	}
	list := f.list(t, s, Prefix, at{})
	if rv := rvOfList(t, list); rv < last.rv {
		t.Fatalf("a LIST after the write at %d says that it is at %d", last.rv, rv)
	}
	samePods(t, fmt.Sprintf("a LIST after the write at %d", last.rv), h.at(last.rv, everything), list.Items)
}

func currentVersion(t *testing.T, f *fixture, s storage.Interface) {
	h := f.begin(t, s)
	var current uint64
	for _, step := range script {
		e := h.play(t, f, s, step)
		if current >= e.rv {
			t.Fatalf("GetCurrentResourceVersion was %d before the write at %d", current, e.rv)
		}
		next, err := s.GetCurrentResourceVersion(f.ctx)
		switch {
		case err != nil:
			t.Fatalf("GetCurrentResourceVersion fails: %v", err)
		case next < e.rv:
			t.Fatalf("GetCurrentResourceVersion is %d after the write at %d", next, e.rv)
		case next < current:
			t.Fatalf("GetCurrentResourceVersion is %d, it was %d before", next, current)
		}
		current = next
	}
}
