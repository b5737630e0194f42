// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/watch"
)

// Begin says how a watch begins.
type Begin int

const (
	// After: with the first event after Stream.From.
	After Begin = iota
	// Marked: with the state, whose end a bookmark marks (sendInitialEvents).
	Marked
	// Unmarked: with the state, whose end nothing marks.
	Unmarked
)

// Stream is what one watch delivered between the answer to its request and its
// end, without a break.
type Stream struct {
	Name      string // for messages
	Selection Selection
	Begin     Begin
	// From is the version in the request; of a stream that begins with the state
	// it is what the state must reach at least.
	From   int64
	Events []Event
}

// To is the last version that the stream's client has seen.
func (s *Stream) To() int64 {
	to := s.From
	if s.Begin != After {
		to = 0
	}
	for _, e := range s.Events {
		to = max(to, e.RV)
	}
	return to
}

// Streams judges each stream by itself. Above upTo nothing is asked.
func Streams(h *History, upTo int64, streams ...Stream) (out Violations) {
	for i := range streams {
		j := streamJudge{history: h, stream: &streams[i], upTo: upTo}
		j.judge()
		out = append(out, j.found...)
	}
	return out
}

type streamJudge struct {
	history *History
	stream  *Stream
	upTo    int64
	found   Violations
}

func (j *streamJudge) add(p Property, format string, args ...any) {
	j.found.Add(p, "watch %s of %v from %d: %s", j.stream.Name, j.stream.Selection, j.stream.From, fmt.Sprintf(format, args...))
}

func (j *streamJudge) judge() {
	from, events := j.stream.From, j.upToEnd()
	if j.stream.Begin != After {
		var ok bool
		if from, events, ok = j.initial(events); !ok {
			return
		}
	}
	j.order(from, events)
	j.content(from, events)
}

// upToEnd are the events that are judged.
func (j *streamJudge) upToEnd() []Event {
	for i, e := range j.stream.Events {
		if e.RV > j.upTo {
			return j.stream.Events[:i]
		}
	}
	return j.stream.Events
}

// order looks at versions alone.
func (j *streamJudge) order(from int64, events []Event) {
	type id struct {
		key string
		rv  int64
	}
	last, bookmark, seen := from, int64(-1), map[id]bool{}
	for i, e := range events {
		if e.Kind == watch.Bookmark {
			if e.RV < last {
				j.add(Bookmarkable, "bookmark %d (event %d) comes after version %d", e.RV, i, last)
			}
			if e.Ends {
				j.add(Initial, "the end of initial events is marked at %d (event %d), and nothing asks for it", e.RV, i)
			}
			last, bookmark = max(last, e.RV), max(bookmark, e.RV)
			continue
		}
		switch {
		case seen[id{e.Key, e.RV}]:
			j.add(Unique, "event %d comes again: %v", i, e)
		case e.RV <= bookmark:
			j.add(Bookmarkable, "event %d comes after bookmark %d: %v", i, bookmark, e)
		case e.RV <= from:
			j.add(Resumable, "event %d is not above the version that the watch begins after: %v", i, e)
		case e.RV < last:
			j.add(Ordered, "event %d comes after version %d: %v", i, last, e)
		}
		seen[id{e.Key, e.RV}] = true
		last = max(last, e.RV)
	}
}

// content compares the events with the history, in order, and tells the first
// difference.
func (j *streamJudge) content(from int64, events []Event) {
	got, to, whole := make([]Event, 0, len(events)), from, int64(0)
	var bookmarks []int64 // the version up to which all must have come before got[i]
	for _, e := range events {
		if e.Kind == watch.Bookmark {
			whole = max(whole, e.RV)
		} else {
			got, bookmarks = append(got, e), append(bookmarks, whole)
		}
		to = max(to, e.RV)
	}
	want := j.history.Expect(j.stream.Selection, from, to)
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			j.missingAtEnd(want[i:], got, whole, to)
		case i >= len(want):
			j.add(Exact, "event %d is not in the history: %v", i, got[i])
		case got[i] != want[i]:
			j.different(i, got, want, bookmarks[i])
		default:
			continue
		}
		return
	}
}

// missingAtEnd tells events that did not come although the stream has reached
// their version, by a bookmark, or by another event of theirs. The stream may
// have been cut off between two events of one revision.
func (j *streamJudge) missingAtEnd(missing, got []Event, whole, to int64) {
	switch {
	case missing[0].RV <= whole:
		j.add(Bookmarkable, "bookmark %d came without %v", whole, missing[0])
	case missing[0].RV < to:
		j.add(Reliable, "%v is missing up to %d, after %d events", missing[0], to, len(got))
	}
}

func (j *streamJudge) different(i int, got, want []Event, bookmark int64) {
	g, w := got[i], want[i]
	switch {
	case g.RV == w.RV && g.Key == w.Key:
		j.add(Exact, "event %d is %v, not %v", i, g, w)
	case !contains(want[i:], g):
		j.add(Exact, "event %d is not in the history, or not here: %v; the next is %v", i, g, w)
	case w.RV <= bookmark:
		j.add(Bookmarkable, "bookmark %d came without %v", bookmark, w)
	case i == 0 && j.stream.Begin == After:
		j.add(Resumable, "the first event is %v, not %v", g, w)
	case i > 0 && got[i-1].RV == w.RV:
		j.add(Atomic, "revision %d was delivered without %v", w.RV, w)
	default:
		j.add(Reliable, "%v is missing before %v (event %d)", w, g, i)
	}
}

func contains(events []Event, e Event) bool {
	for _, other := range events {
		if other.Key == e.Key && other.RV == e.RV {
			return true
		}
	}
	return false
}

// initial judges the initial events and gives the version and the events that
// follow. ok is false if nothing can be said about these.
func (j *streamJudge) initial(events []Event) (from int64, rest []Event, ok bool) {
	if j.stream.Begin == Unmarked {
		return j.unmarked(events)
	}
	items := map[string]Item{}
	for i, e := range events {
		switch {
		case e.Kind == watch.Bookmark && e.Ends:
			if e.RV < j.stream.From {
				j.add(Initial, "the state is of %d", e.RV)
			}
			if want := j.history.StateAt(j.stream.Selection, e.RV); !maps.Equal(items, want) {
				j.add(Initial, "the state at %d has %v, where etcd had %v", e.RV, items, want)
				return 0, nil, false
			}
			return e.RV, events[i+1:], true
		case e.Kind == watch.Bookmark:
			j.add(Initial, "bookmark %d comes before the initial events have ended", e.RV)
			return 0, nil, false
		case !j.first(items, i, e):
			return 0, nil, false
		}
	}
	return 0, nil, false // the watch ended before its initial events did
}

// first adds an initial event to the items.
func (j *streamJudge) first(items map[string]Item, i int, e Event) bool {
	if _, again := items[e.Key]; again || e.Kind != watch.Added {
		j.add(Initial, "initial event %d is %v", i, e)
		return false
	}
	items[e.Key] = Item{e.RV, e.Content, e.Sum}
	return true
}

// unmarked looks for a version whose state is what the stream begins with: some
// of its first events, all of them ADDED. The events that follow tell which of
// several it is. ok is false if the stream may have ended within the state.
func (j *streamJudge) unmarked(events []Event) (from int64, rest []Event, ok bool) {
	items, highest := map[string]Item{}, j.stream.From
	var nearest *streamJudge // what is wrong if the longest of the states is the one
	for i := 0; ; i++ {
		next := j.upTo
		if i < len(events) {
			next = events[i].RV - 1
			if events[i].Kind == watch.Bookmark {
				next = events[i].RV
			}
		}
		for _, rev := range j.history.find(j.stream.Selection, items, highest, next) {
			try := &streamJudge{history: j.history, stream: j.stream, upTo: j.upTo}
			try.order(rev, events[i:])
			try.content(rev, events[i:])
			if len(try.found) == 0 {
				return rev, events[i:], true
			}
			if len(items) > 0 {
				nearest = try
			}
		}
		if i == len(events) && nearest == nil {
			return 0, nil, false
		}
		if i == len(events) || events[i].Kind != watch.Added || hasKey(items, events[i].Key) {
			if nearest != nil {
				j.found = append(j.found, nearest.found...)
			} else {
				j.add(Initial, "no state that was is what the watch begins with: %v, event %d comes next", items, i)
			}
			return 0, nil, false
		}
		items[events[i].Key] = Item{events[i].RV, events[i].Content, events[i].Sum}
		highest = max(highest, events[i].RV)
	}
}

func hasKey(items map[string]Item, key string) bool {
	_, has := items[key]
	return has
}

// find gives revisions from from to to at which s has exactly the items: one of
// each time in which it had them.
func (h *History) find(s Selection, items map[string]Item, from, to int64) (revs []int64) {
	if from > to {
		return nil
	}
	// wrong is how many keys are not as in items; state is what s has.
	wrong, state := len(items), map[string]Item{}
	right := func(key string) bool {
		is, there := state[key]
		want, wanted := items[key]
		return there == wanted && is == want
	}
	add := func(rev int64) {
		if wrong == 0 {
			revs = append(revs, rev)
		}
	}
	i := 0
	take := func(rev int64) (changed bool) {
		for ; i < len(h.changes) && h.changes[i].Rev <= rev; i++ {
			c := h.changes[i]
			was, had := right(c.Key), s.includes(c.Before)
			delete(state, c.Key)
			if s.includes(c) {
				state[c.Key] = c.item()
			}
			changed = changed || had || s.includes(c)
			switch is := right(c.Key); {
			case was && !is:
				wrong++
			case !was && is:
				wrong--
			}
		}
		return changed
	}
	take(from)
	add(from)
	for i < len(h.changes) && h.changes[i].Rev <= to {
		if rev := h.changes[i].Rev; take(rev) {
			add(rev)
		}
	}
	return revs
}
