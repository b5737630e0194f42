// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"time"
)

// watchRule is what one watch may bring. Where the watch begins is not always
// known: a watch "from any version" may begin at each of several. watchRule keeps
// the beginnings that agree with all that was seen; there must always be one.
type watchRule struct {
	selection selection
	// asked is the version that the watch asked for, as text, and from its number.
	asked string
	from  uint64
	// state: the watch begins with the state. endMark: its end is marked.
	state, endMark, bookmarks bool
	// anyPart: storage does not tell where a revision ends, so that a watch may
	// begin within one.
	anyPart bool
	// least is the number of changes that the beginning must have.
	least int
	// known: the beginnings are.
	known      bool
	beginnings []*beginning

	all          []seen
	last         uint64 // the highest version that was seen
	bookmark     uint64 // the last one
	bookmarkAt   time.Time
	marked, over bool
	failed       *seen

	// The rest is what can excuse an end.
	opened       time.Time
	current      uint64 // the storage's version when it was asked for
	oldest       uint64 // the cache's oldest version when it was asked for
	ahead        bool   // the cache may not have reached the version then
	fills        int64
	openFills    int64 // when it was open
	lost         bool  // the history that it began in is gone
	gone         bool  // the client is, or its time is over
	deadline     time.Time
	stalled      bool // the client has not read for some time
	stalledSince time.Time
	readsSince   time.Time
	stalledFor   time.Duration
	troubled     bool // when it was asked for
	undecodable  int
	stopped      bool
	refused      bool
	answered     bool
}

// beginning is one version that the watch may have begun at.
type beginning struct {
	// changes is how many changes it has; events at or below after are not for
	// the watch.
	changes int
	after   uint64
	// initial is what is still to come of the state, by its text.
	initial map[string]bool
	// next is the next change to look at.
	next int
}

func (r *watchRule) begin(changes int, h *history) *beginning {
	b := &beginning{changes: changes, next: changes}
	if r.state {
		b.initial = map[string]bool{}
		for _, o := range r.selection.of(h.state(changes)) {
			b.initial["ADDED "+o.text] = true
		}
	}
	return b
}

// learn finds the beginnings that are possible, once the watch is open.
func (r *watchRule) learn(h *history) {
	if r.known {
		return
	}
	r.known = true
	if !r.state && r.from > 0 {
		b := r.begin(h.whole(r.from), h)
		b.after = r.from
		r.beginnings = []*beginning{b}
		return
	}
	for n := min(r.least, len(h.changes)); n <= len(h.changes); n++ {
		if n > 0 && n < len(h.changes) && h.changes[n].rv == h.changes[n-1].rv && !r.anyPart {
			continue // within a revision
		}
		r.beginnings = append(r.beginnings, r.begin(n, h))
	}
}

// see takes one thing that the watch has brought. see returns what is wrong with
// it, "" if nothing.
func (r *watchRule) see(s seen, h *history) string {
	switch {
	case r.over:
		return "something comes after the end"
	case s.kind == "closed":
		r.over = true
		return ""
	case r.failed != nil:
		return "something comes after an error"
	case s.kind == "ERROR":
		r.failed = &s
		return ""
	case r.lost:
		return r.seeLost(s)
	case s.rv > h.rv:
		return fmt.Sprintf("it is of version %d, and the storage is at %d", s.rv, h.rv)
	}
	r.all = append(r.all, s)
	if s.kind == "BOOKMARK" {
		return r.seeBookmark(s, h)
	}
	r.beginnings = slices.DeleteFunc(r.beginnings, func(b *beginning) bool { return !r.agrees(b, s, h) })
	r.last = max(r.last, s.rv)
	switch {
	case len(r.beginnings) == 0:
		return "the model has no such event here"
	case s.rv <= r.complete(r.bookmark, h):
		return fmt.Sprintf("a bookmark at %d has come before it", r.bookmark)
	}
	return ""
}

// agrees reports whether the event is the next one for the beginning, and goes on.
func (r *watchRule) agrees(b *beginning, s seen, h *history) bool {
	if len(b.initial) > 0 {
		if !b.initial[s.text] {
			return false
		}
		delete(b.initial, s.text)
		return true
	}
	return r.advance(b, h, ^uint64(0)) == s.text && r.pass(b)
}

func (r *watchRule) pass(b *beginning) bool { b.next++; return true }

// within reports whether the watch may have got a part only of the last revision that
// it has seen.
func (r *watchRule) within(h *history) bool {
	return slices.ContainsFunc(r.beginnings, func(b *beginning) bool { return r.advance(b, h, r.last) != "" })
}

// advance goes to the next change at or below most that the watch is to be told of,
// and returns the event, "" if there is none.
func (r *watchRule) advance(b *beginning, h *history, most uint64) string {
	for ; b.next < len(h.changes); b.next++ {
		c := h.changes[b.next]
		if c.rv > most {
			return ""
		}
		if c.rv <= b.after {
			continue
		}
		if text := r.selection.event(c); text != "" {
			return text
		}
	}
	return ""
}

func (r *watchRule) seeBookmark(s seen, h *history) string {
	switch {
	case s.end && (!r.endMark || r.marked):
		return "nobody asked for it"
	case s.end:
		r.marked = true
	case !r.bookmarks:
		return "nobody asked for bookmarks"
	case r.endMark && !r.marked:
		return "it comes before the end of the initial events"
	}
	if s.rv < r.last || s.rv < r.bookmark || (s.rv < r.from && r.from <= h.rv) {
		return fmt.Sprintf("it is below what was seen (event %d, bookmark %d, asked for %d)", r.last, r.bookmark, r.from)
	}
	r.bookmark, r.bookmarkAt = s.rv, s.at
	r.beginnings = slices.DeleteFunc(r.beginnings, func(b *beginning) bool {
		if len(b.initial) > 0 {
			return true
		}
		if s.end && (b.next != b.changes || (b.changes != h.whole(s.rv) && !r.anyPart)) {
			return true
		}
		return r.advance(b, h, r.complete(s.rv, h)) != ""
	})
	if len(r.beginnings) == 0 {
		return "events up to it have not been sent"
	}
	return ""
}

// late returns for how long a bookmark should have come, if none has, and 0 if that is
// no longer than it may be: the client has read, and nothing was wrong, since the given
// time.
func (r *watchRule) late(since time.Time, interval time.Duration) time.Duration {
	if !r.bookmarks || r.anyPart || (r.ahead && r.bookmark == 0) {
		return 0
	}
	for _, at := range []time.Time{r.opened, r.readsSince, r.bookmarkAt} {
		if at.After(since) {
			since = at
		}
	}
	if without := time.Since(since); without > interval+bookmarkSlack {
		return without
	}
	return 0
}

// bookmarkSlack is how much later than after its interval a bookmark may come: they are
// sent once a second.
const bookmarkSlack = 2100 * time.Millisecond

// complete returns the version up to which everything must have been sent before a
// bookmark at rv. Storage without progress reports does not tell where a revision
// ends. If it brings one in parts, the rest may come after the bookmark, which is
// not promised: a client that resumes there misses the rest.
func (r *watchRule) complete(rv uint64, h *history) uint64 {
	if rv > 0 && r.anyPart && (h.anyInParts || h.inParts[rv]) {
		return rv - 1
	}
	return rv
}

// seeLost is see for a watch of a history that is gone.
func (r *watchRule) seeLost(s seen) string {
	if s.kind != "BOOKMARK" && len(r.all) > 0 && r.marked && s.rv < r.last {
		return fmt.Sprintf("versions fall from %d to %d", r.last, s.rv)
	}
	r.all = append(r.all, s)
	r.marked = r.marked || s.end
	r.last = max(r.last, s.rv)
	return ""
}

// missing returns what the watch should have brought by now, and has not; "" if
// nothing.
func (r *watchRule) missing(h *history) string {
	lacks := ""
	for _, b := range r.beginnings {
		if len(b.initial) > 0 {
			lacks = "initial events"
			continue
		}
		if lacks = r.advance(b, h, ^uint64(0)); lacks == "" {
			if r.endMark && !r.marked {
				return "the end of the initial events"
			}
			return ""
		}
	}
	return lacks
}
