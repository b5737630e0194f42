// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"
	"strings"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// maxPostings bounds for how many attributes there are postings at a time.
const maxPostings = 16

// Equality is the equality that a query is filed under: an event without one of its
// values, before or after, does not affect the query.
type Equality struct{ equality }

// Rarest returns the equality that a query is filed under. ok is false if there is
// none, so that any event may affect the query.
func (x *Indexes) Rarest(q *Query) (e Equality, ok bool) {
	e.equality = x.rarest(q)
	return e, e.kind != byNothing
}

// Postings hold the positions in the window of events that may affect a query: for each
// value of an attribute, the events that have it before or after. A watch that resumes
// far back looks at these only, so its cost depends on the matches.
//
// The postings of an attribute are made from the window's events when they are first
// needed, and later continued. Applying and dispatching an event cost nothing for them.
// The caller guards Postings with a lock.
type Postings struct {
	indexes *Indexes
	state   *watchcache.State
	of      map[attribute]*postings
	scratch [64]*watchcache.Event
}

// postings are those of one attribute, from first on and up to next.
type postings struct {
	first, next watchcache.Position
	positions   map[string][]watchcache.Position // ascending; nil until they are made
	entries     int
	// wanted is how many events were walked for want of these postings.
	wanted int
}

// NewPostings returns the postings of a state's window: none yet.
func NewPostings(x *Indexes, state *watchcache.State) *Postings {
	return &Postings{indexes: x, state: state, of: make(map[attribute]*postings)}
}

// Find returns in found the positions from a position on of the first events that
// have one of the values, at most len(found), and their number. All events below
// the position to that are not among them have none of the values.
//
// If ok is false, the caller must walk the window: the postings do not reach back to
// from, or were not worth making yet. They are made once as many events were walked
// without them as the window has.
func (p *Postings) Find(e Equality, from watchcache.Position, found []watchcache.Position) (n int, to watchcache.Position, ok bool) {
	stats := p.state.Stats()
	of := p.of[e.attribute]
	switch {
	case of == nil && len(p.of) == maxPostings:
		return 0, 0, false
	case of == nil, of.first > stats.Oldest: // State.Backfill has put events before them
		of = &postings{first: stats.Oldest, next: stats.Oldest}
		p.of[e.attribute] = of
	}
	if of.positions == nil {
		of.wanted += int(max(stats.Next, from) - from)
		if of.wanted <= stats.WindowEvents {
			return 0, 0, false
		}
	}
	p.extend(e.attribute, of)
	if from < of.first {
		return 0, 0, false
	}
	n = of.find(e.values, from, found)
	if n == len(found) {
		return n, found[n-1] + 1, true
	}
	return n, max(from, of.next), true
}

// extend adds the events that there are.
func (p *Postings) extend(at attribute, of *postings) {
	defer clear(p.scratch[:])
	for {
		n, _, err := p.state.Since(of.next, p.scratch[:])
		if err != nil || of.positions == nil {
			// Events in between are gone, or there are no postings yet: they begin
			// with the oldest event that there is.
			oldest := p.state.Stats().Oldest
			*of = postings{first: oldest, next: oldest, positions: make(map[string][]watchcache.Position)}
			continue
		}
		if n == 0 {
			return
		}
		for _, e := range p.scratch[:n] {
			p.indexes.values(at, e, func(value string) { of.add(value, e.Position) })
		}
		of.next += watchcache.Position(n)
	}
}

// values calls yield with each value of the attribute that an event has before or
// after.
func (x *Indexes) values(at attribute, e *watchcache.Event, yield func(value string)) {
	if at.kind == byScope {
		x.scopesOf(e.Element.Key, yield)
		return
	}
	value, ok := x.value(at, e.Element)
	if ok {
		yield(value)
	}
	if e.Previous == nil {
		return
	}
	if before, had := x.value(at, e.Previous); had && (!ok || before != value) {
		yield(before)
	}
}

// scopesOf calls yield with each key prefix below the resource's that a key has.
func (x *Indexes) scopesOf(key string, yield func(prefix string)) {
	if !strings.HasPrefix(key, x.prefix) {
		return
	}
	for end := len(x.prefix); ; {
		next := strings.IndexByte(key[end:], '/')
		if next < 0 {
			return
		}
		end += next + 1
		yield(key[:end])
	}
}

func (of *postings) add(value string, at watchcache.Position) {
	of.positions[value] = append(of.positions[value], at)
	of.entries++
}

// find merges the lists of the values.
func (of *postings) find(values []string, from watchcache.Position, found []watchcache.Position) int {
	if len(values) == 1 {
		return copy(found, after(of.positions[values[0]], from))
	}
	var all []watchcache.Position
	for _, value := range values {
		list := after(of.positions[value], from)
		all = append(all, list[:min(len(list), len(found))]...)
	}
	slices.Sort(all)
	return copy(found, slices.Compact(all))
}

// after returns the part of a list from a position on.
func after(list []watchcache.Position, from watchcache.Position) []watchcache.Position {
	i, _ := slices.BinarySearch(list, from)
	return list[i:]
}

// Trim forgets postings that nobody has asked for since the window has moved past
// them, and lists that do not reach back as far as the window since State.Backfill; and
// from time to time the positions that have left the window.
func (p *Postings) Trim() {
	if len(p.of) == 0 {
		return
	}
	oldest := p.state.Stats().Oldest
	for at, of := range p.of {
		switch {
		case of.next < oldest, of.first > oldest:
			delete(p.of, at)
		case of.positions != nil && oldest-of.first > (of.next-of.first)/2:
			of.trim(oldest)
		}
	}
}

func (of *postings) trim(oldest watchcache.Position) {
	of.entries = 0
	for value, list := range of.positions {
		rest := after(list, oldest)
		if len(rest) == 0 {
			delete(of.positions, value)
			continue
		}
		of.positions[value] = slices.Clone(rest)
		of.entries += len(rest)
	}
	of.first = oldest
}

// Bytes estimates the memory of the postings, in bytes.
func (p *Postings) Bytes() (n int64) {
	const perEntry, perValue = 12, 80 // a list has room for half as many again; a map's slot, and the list's header
	for _, of := range p.of {
		n += int64(of.entries)*perEntry + int64(len(of.positions))*perValue
	}
	return n
}
