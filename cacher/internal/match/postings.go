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

const maxPostings = 16

// Postings hold, for each value of an attribute, the window positions of events that have it before
// or after. A watch that resumes far back visits only these, so its cost depends on the matches.
//
// They are built from the window on demand and later extended, at no cost to applying or
// dispatching an event. Safe for concurrent use; their lock is taken before the state's.
type Postings struct {
	indexes *Indexes
	state   *watchcache.State
	bytes   atomic.Int64 // estimate after the last change

	mu struct {
		sync.Mutex
		of      map[attribute]*postings
		scratch [64]*watchcache.Event
	}
}

// postings is one attribute's postings for positions from first up to next, by the hash of the
// value, so that candidates may include events of another value. refused postings exceeded the
// memory limit; they are not rebuilt while their events are in the window.
type postings struct {
	first, next watchcache.Position
	positions   map[uint64][]watchcache.Position // ascending
	entries     int
	refused     bool
}

var valueSeed = maphash.MakeSeed()

func hashOf(value string) uint64 { return maphash.String(valueSeed, value) }

// minMostBytes is the least memory limit of all postings. The limit is half of the window's bytes
// if that is more.
const minMostBytes = 1 << 20

// NewPostings returns empty postings of a state's window.
func NewPostings(x *Indexes, state *watchcache.State) *Postings {
	p := &Postings{indexes: x, state: state}
	p.mu.of = make(map[attribute]*postings)
	return p
}

// Events copies to buf the first events from a position on that may affect a query, at most 32, and
// returns their number. No other event below position to affects the query. If ok is false, the
// caller must walk the window.
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
		return 0, 0, false // walking the window returns the cause
	}
	return n, to, true
}

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

// extendLocked adds later events. It returns false if some were evicted or exceed the memory limit.
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

// values calls yield with each value of the attribute that e or previous, if not nil, has.
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

func after(list []watchcache.Position, from watchcache.Position) []watchcache.Position {
	i, _ := slices.BinarySearch(list, from)
	return list[i:]
}

// Trim drops unneeded postings, unless another goroutine holds the lock.
func (p *Postings) Trim() {
	if p.mu.TryLock() {
		defer p.mu.Unlock()
		p.trimLocked()
		p.measureLocked()
	}
}

// trimLocked drops postings with a gap to the window, or mostly of evicted events. The next use
// rebuilds them.
func (p *Postings) trimLocked() {
	oldest := p.state.Stats().Oldest
	for at, of := range p.mu.of {
		if of.first > oldest || oldest-of.first > (of.next-of.first)/2 {
			delete(p.mu.of, at)
		}
	}
}

func (p *Postings) measureLocked() {
	const perEntry, perValue = 12, 80 // with a list's spare capacity; a map slot and a slice header
	n := int64(0)
	for _, of := range p.mu.of {
		n += int64(of.entries)*perEntry + int64(len(of.positions))*perValue
	}
	p.bytes.Store(n)
}

// Bytes estimates the memory of the postings.
func (p *Postings) Bytes() int64 { return p.bytes.Load() }
