// SPDX-License-Identifier: Apache-2.0

package match

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// maxPostings bounds for how many attributes there are postings at a time.
const maxPostings = 16

// Postings hold the positions in the window of events that may affect a query: for each
// value of an attribute, the events that have it before or after. A watch that resumes
// far back looks at these only, so its cost depends on the matches.
//
// The postings of an attribute are made from the window's events when they are needed,
// and later continued. Applying and dispatching an event cost nothing for them. Postings
// are safe for concurrent use; the state's lock is taken under theirs.
type Postings struct {
	indexes *Indexes
	state   *watchcache.State
	bytes   atomic.Int64 // an estimate, after the last change

	mu struct {
		sync.Mutex
		of      map[attribute]*postings
		scratch [64]*watchcache.Event
	}
}

// postings are those of one attribute, from first on and up to next, by the hash of the value:
// events of two values with one hash are candidates for both. refused postings have taken too
// much memory; they are not made again while their events are in the window.
type postings struct {
	first, next watchcache.Position
	positions   map[uint64][]watchcache.Position // ascending
	entries     int
	refused     bool
}

var valueSeed = maphash.MakeSeed()

func hashOf(value string) uint64 { return maphash.String(valueSeed, value) }

// minMostBytes is what all postings may take, in bytes, or half of the window if that is more.
const minMostBytes = 1 << 20

// NewPostings returns the postings of a state's window: none yet.
func NewPostings(x *Indexes, state *watchcache.State) *Postings {
	p := &Postings{indexes: x, state: state}
	p.mu.of = make(map[attribute]*postings)
	return p
}

// Events copies the first events from a position on that may affect a query, at most 32 and
// what buf has room for, and returns their number. All events below the position to that are
// not among them do not affect the query. If ok is false, the caller must walk the window.
func (p *Postings) Events(q *Query, from watchcache.Position, buf []*watchcache.Event) (n int, to watchcache.Position, ok bool) {
	under := p.indexes.rarest(q)
	if under.kind == byNothing {
		return 0, 0, false
	}
	var positions [32]watchcache.Position
	found := positions[:min(len(buf), len(positions))]
	p.mu.Lock()
	defer p.mu.Unlock()
	n, to, ok = p.findLocked(under, from, found)
	if !ok || p.state.Pick(from, found[:n], buf) != nil {
		return 0, 0, false // who walks the window finds out why
	}
	return n, to, true
}

// findLocked puts into found the positions of the first events that have one of the values.
func (p *Postings) findLocked(e equality, from watchcache.Position, found []watchcache.Position) (n int, to watchcache.Position, ok bool) {
	defer p.measureLocked()
	p.trimLocked()
	of := p.mu.of[e.attribute]
	if of == nil {
		if len(p.mu.of) == maxPostings {
			return 0, 0, false
		}
		oldest := p.state.Stats().Oldest
		of = &postings{first: oldest, next: oldest, positions: make(map[uint64][]watchcache.Position)}
		p.mu.of[e.attribute] = of
	}
	if of.refused || !p.extendLocked(e.attribute, of) || from < of.first {
		return 0, 0, false
	}
	n = of.find(e.values, from, found)
	if n == len(found) {
		return n, found[n-1] + 1, true
	}
	return n, max(from, of.next), true
}

// extendLocked adds the events that have come. It returns false if some in between are gone, or
// if there is no room.
func (p *Postings) extendLocked(at attribute, of *postings) bool {
	defer clear(p.mu.scratch[:])
	for {
		n, _, err := p.state.Since(of.next, p.mu.scratch[:])
		if n == 0 {
			return err == nil
		}
		for _, e := range p.mu.scratch[:n] {
			p.indexes.values(at, e.Element, e.Previous, func(value string) {
				key := hashOf(value)
				of.positions[key] = append(of.positions[key], e.Position)
				of.entries++
			})
		}
		if p.measureLocked(); p.Bytes() > max(minMostBytes, p.state.Stats().WindowBytes/2) {
			of.refused, of.positions, of.entries = true, nil, 0
			return false
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
		return copy(found, after(of.positions[hashOf(values[0])], from))
	}
	var all []watchcache.Position
	for _, value := range values {
		list := after(of.positions[hashOf(value)], from)
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

// Trim forgets postings that are not needed any more, unless the lock is taken: it does not
// wait.
func (p *Postings) Trim() {
	if p.mu.TryLock() {
		defer p.mu.Unlock()
		p.trimLocked()
		p.measureLocked()
	}
}

// trimLocked forgets postings that do not begin or end in the window any more, or are mostly
// of events that have left it. They are made again when they are needed.
func (p *Postings) trimLocked() {
	oldest := p.state.Stats().Oldest
	for at, of := range p.mu.of {
		if of.first > oldest || oldest-of.first > (of.next-of.first)/2 {
			delete(p.mu.of, at)
		}
	}
}

func (p *Postings) measureLocked() {
	const perEntry, perValue = 12, 80 // a list has room for half as many again; a map's slot, and the list's header
	n := int64(0)
	for _, of := range p.mu.of {
		n += int64(of.entries)*perEntry + int64(len(of.positions))*perValue
	}
	p.bytes.Store(n)
}

// Bytes estimates the memory of the postings, in bytes.
func (p *Postings) Bytes() int64 { return p.bytes.Load() }
