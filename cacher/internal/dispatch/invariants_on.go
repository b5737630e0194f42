// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package dispatch

import (
	"fmt"
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// deliveries records a watcher's events, to check that each is sent once and in order.
type deliveries struct{ rv, bookmarked uint64 }

// event checks a delivered event. Events may share a resourceVersion (W3). Only a late event may
// follow a bookmark at its resourceVersion (W4).
func (d *deliveries) event(e *watchcache.Event) {
	if e.RV < d.rv {
		panic(fmt.Sprintf("W3: a watcher is told of resourceVersion %d after %d", e.RV, d.rv))
	}
	if e.RV < d.bookmarked || e.RV == d.bookmarked && !e.Late {
		panic(fmt.Sprintf("W4: a watcher is told of resourceVersion %d after a bookmark at %d", e.RV, d.bookmarked))
	}
	d.rv = e.RV
}

func (d *deliveries) bookmark(rv uint64) {
	if rv < d.rv || rv < d.bookmarked {
		panic(fmt.Sprintf("W4: a watcher gets a bookmark at %d after an event at %d and a bookmark at %d", rv, d.rv, d.bookmarked))
	}
	d.bookmarked = rv
}

// next lists the states that may follow each state.
var next = [states][]state{
	starting: {live, parked, ending, closed},
	live:     {parked, ending, closed},
	parked:   {live, parked, ending, closed},
	ending:   {closed},
}

// checkLocked checks a transition, and the fields that depend on the state.
func (r *registry) checkLocked(w *watcher, from state) {
	to, p := state(w.state.Load()), w.replayer
	sum := 0
	for _, n := range r.mu.count[:closed] {
		sum += n
	}
	for _, rule := range []struct {
		holds bool
		what  string
	}{
		{slices.Contains(next[from], to), "a transition that is not in the table"},
		{(p == nil) == (to == live || to == closed), "a replayer if neither live nor closed, and only then"},
		{p == nil || p.watcher == w, "the replayer is its own"},
		{p == nil || p.place == nil, "no replayer waits that changes its state"},
		{(to == live) == (w.slot < len(w.group.Members) && w.group.Members[w.slot] == w), "a member of its group if live, and only then"},
		{(r.mu.all[w.id] == w) == (to != closed), "in the set until it is closed"},
		{w.bookmark == nil || (w.bookmark.watcher == nil) == (to == closed), "in a bucket until it is closed"},
		{sum == len(r.mu.all), "the counts are those of the set"},
		{to != ending || p.reason != 0 || p.failure != nil, "an ending has a reason"},
	} {
		if !rule.holds {
			panic(fmt.Sprintf("watcher %d goes from state %d to %d, against: %s", w.id, from, to, rule.what))
		}
	}
}
