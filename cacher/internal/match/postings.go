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
// The postings of an attribute are made from the window's events when they are needed,
// and later continued. Applying and dispatching an event cost nothing for them.
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
	positions   map[string][]watchcache.Position // ascending
	entries     int
}

// NewPostings returns the postings of a state's window: none yet.
func NewPostings(x *Indexes, state *watchcache.State) *Postings {
	return &Postings{indexes: x, state: state, of: make(map[attribute]*postings)}
}

// Find returns in found the positions from a position on of the first events that
// have one of the values, at most len(found), and their number. All events below
// the position to that are not among them have none of the values. If ok is false, the
// caller must walk the window.
func (p *Postings) Find(e Equality, from watchcache.Position, found []watchcache.Position) (n int, to watchcache.Position, ok bool) {
	p.Trim()
	of := p.of[e.attribute]
	if of == nil {
		if len(p.of) == maxPostings {
			return 0, 0, false
		}
		oldest := p.state.Stats().Oldest
		of = &postings{first: oldest, next: oldest, positions: make(map[string][]watchcache.Position)}
		p.of[e.attribute] = of
	}
	if !p.extend(e.attribute, of) || from < of.first {
		return 0, 0, false
	}
	n = of.find(e.values, from, found)
	if n == len(found) {
		return n, found[n-1] + 1, true
	}
	return n, max(from, of.next), true
}

// extend adds the events that have come. It returns false if some in between are gone.
func (p *Postings) extend(at attribute, of *postings) bool {
	defer clear(p.scratch[:])
	for {
		n, _, err := p.state.Since(of.next, p.scratch[:])
		if n == 0 {
			return err == nil
		}
		for _, e := range p.scratch[:n] {
			p.indexes.values(at, e.Element, e.Previous, func(value string) {
				of.positions[value] = append(of.positions[value], e.Position)
				of.entries++
			})
		}
		of.next += watchcache.Position(n)
	}
}

// values calls yield with each value of the attribute that an element has, and with those
// that the one before it had, which may be nil.
func (x *Indexes) values(at attribute, e, previous *watchcache.Element, yield func(value string)) {
	if at.kind == byScope {
		x.scopesOf(e.Key, yield)
		return
	}
	value, ok := x.value(at, e)
	if ok {
		yield(value)
	}
	if previous == nil {
		return
	}
	if before, had := x.value(at, previous); had && (!ok || before != value) {
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

// Trim forgets postings that do not begin or end in the window any more, or are mostly of
// events that have left it. They are made again when they are needed.
func (p *Postings) Trim() {
	oldest := p.state.Stats().Oldest
	for at, of := range p.of {
		if of.next < oldest || of.first > oldest || oldest-of.first > (of.next-of.first)/2 {
			delete(p.of, at)
		}
	}
}

// Bytes estimates the memory of the postings, in bytes.
func (p *Postings) Bytes() (n int64) {
	const perEntry, perValue = 12, 80 // a list has room for half as many again; a map's slot, and the list's header
	for _, of := range p.of {
		n += int64(of.entries)*perEntry + int64(len(of.positions))*perValue
	}
	return n
}
