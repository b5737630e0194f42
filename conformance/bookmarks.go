// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher"
)

// bookmarkClauses are about the bookmarks that a client resumes from.
var bookmarkClauses = []clause{
	{
		name:  "IdleBookmarks",
		rule:  "bookmarks of a watch move on while nothing happens to its resource, so that its client can resume after others have written for long",
		needs: progress | touch,
		run:   idleBookmarks,
	},
	{
		name: "BookmarkOrder",
		rule: "after a bookmark at a resourceVersion a watch is told of nothing at or before it",
		run:  bookmarkOrder,
	},
	{
		name: "ResumeFromBookmark",
		rule: "a watch that is resumed from a bookmark is told exactly what the first one would have been",
		run:  resumeFromBookmark,
	},
}

// frequentBookmarks is as often as bookmarks come.
func frequentBookmarks(config *cacher.Config) { config.BookmarkInterval = time.Second }

// pollInterval is the time between two looks at something that takes time.
const pollInterval = 20 * time.Millisecond

func idleBookmarks(t *testing.T, f *fixture) {
	c := f.cache(t, frequentBookmarks)
	h := f.begin(t, f.raw)
	h.write(t, f, f.raw)
	opts := everything.since(h.last())
	opts.Predicate.AllowWatchBookmarks = true
	o := f.observe(t, c, "a watch with bookmarks", Prefix, opts)
	rv := f.touch(t)
	// A consistent read makes the cache ask for progress.
	if listed := rvOfList(t, f.list(t, c, Prefix, at{})); listed < rv {
		t.Fatalf("a LIST without a resourceVersion is at %d, another resource was written at %d before", listed, rv)
	}
	var bookmarks []event
	for len(bookmarks) == 0 || bookmarks[len(bookmarks)-1].rv < rv {
		bookmarks = append(bookmarks, o.next(t, fmt.Sprintf("a bookmark at %d or later (it has brought\n%s)", rv, lines(bookmarks))))
		noEventsBut(t, bookmarks)
	}
}

// bookmarked watches three selections with bookmarks while objects are written
// for long enough that each watch gets some, and returns what each was told.
func bookmarked(t *testing.T, f *fixture, c cached, h *history, selections []selection) [][]event {
	t.Helper()
	const bookmarks = 2
	told := make([][]event, len(selections))
	var watches []*observer
	for _, sel := range selections {
		opts := sel.selected().since(h.start)
		opts.Predicate.AllowWatchBookmarks = true
		watches = append(watches, f.observe(t, c, sel.String()+" with bookmarks", Prefix+sel.key, opts))
	}
	enough := func() bool {
		for _, events := range told {
			if len(events)-len(withoutBookmarks(events)) < bookmarks {
				return false
			}
		}
		return true
	}
	for i := 0; !enough(); i++ {
		// The end is what all of them are told of.
		h.play(t, f, f.raw, script[i%len(script)])
		h.play(t, f, f.raw, end)
		for n, o := range watches {
			told[n] = append(told[n], o.upTo(t, h.changes[len(h.changes)-1])...)
		}
	}
	return told
}

// upTo reads up to a change that must come, however many bookmarks come before.
func (o *observer) upTo(t *testing.T, last event) (events []event) {
	t.Helper()
	for since := time.Now(); ; {
		e := o.next(t, last.String())
		events = append(events, e)
		switch {
		case e.kind == watch.Error:
			t.Fatalf("%s has ended with %v where it must bring %v", o.what, e, last)
		case e.rv == last.rv && e.kind != watch.Bookmark:
			return events
		case time.Since(since) > o.patience:
			t.Fatalf("%s has not brought %v within %s; it has brought\n%s", o.what, last, o.patience, lines(events))
		}
	}
}

var bookmarkSelections = []selection{{}, {label: "app=x"}, {key: "a/", field: "metadata.name=end"}}

func bookmarkOrder(t *testing.T, f *fixture) {
	c := f.cache(t, frequentBookmarks)
	h := f.begin(t, f.raw)
	for i, events := range bookmarked(t, f, c, h, bookmarkSelections) {
		notOvertaken(t, events)
		sel := bookmarkSelections[i]
		sameEvents(t, sel.String(), h.toldAfter(h.start, sel.selected()), withoutBookmarks(events))
	}
}

func resumeFromBookmark(t *testing.T, f *fixture) {
	c := f.cache(t, frequentBookmarks)
	h := f.begin(t, f.raw)
	for i, events := range bookmarked(t, f, c, h, bookmarkSelections) {
		sel := bookmarkSelections[i]
		for _, e := range events {
			if e.kind != watch.Bookmark || e.rv >= h.last() {
				continue
			}
			what := fmt.Sprintf("%v resumed from its bookmark at %d", sel, e.rv)
			o := f.observe(t, c, what, Prefix+sel.key, sel.selected().since(e.rv))
			o.mustTell(t, h.toldAfter(e.rv, sel.selected()))
		}
	}
}
