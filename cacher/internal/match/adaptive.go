// SPDX-License-Identifier: Apache-2.0

package match

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	// costOfElement is the cost of building an index, for each element, and costOfEvent that
	// of keeping it, for each event, both in elements that a scan looks at.
	costOfElement, costOfEvent = 3, 30
	// fadeAfter is the half-life of the counts.
	fadeAfter = time.Minute
	// maxMissed bounds the attributes that are counted, maxMissedName the length of their names
	// in bytes, and maxBlamed the equalities of a query.
	maxMissed, maxMissedName, maxBlamed = 64, 512, 8
)

// policy decides from counts which indexes a cache builds and drops. Its methods are pure.
type policy struct {
	// sampled is how many mismatches each examined one stands for.
	sampled int64
	// buildAt is the threshold: an index is built once scans without it have cost buildAt
	// times its own cost.
	buildAt int64
	// payWithin is the time within which an index must save more than it costs.
	payWithin time.Duration
}

const (
	sampled   = 64
	buildAt   = 4
	payWithin = 10 * time.Minute
)

// usage is the counts of one index, as a policy sees them.
type usage struct {
	attribute
	// saved and cost count elements since the index began to pay: skipped by reads, and the
	// price of keeping it. before is saved of the period before.
	saved, before, cost int64
	// age is the time since the index began to pay.
	age   time.Duration
	bytes int64
}

// worth returns how many elements the index has saved recently.
func (u *usage) worth() int64 { return u.before + u.saved }

// review returns which indexes to keep and which to drop, the most valuable first, and which of
// the kept begin another period. room is the memory for all indexes, left the remainder.
func (p *policy) review(all []usage, room int64) (keep, drop, renew []usage, left int64) {
	for _, u := range all {
		room -= u.bytes
		due := u.age >= p.payWithin
		if room < 0 || due && u.saved <= u.cost {
			drop = append(drop, u)
			room += u.bytes
			continue
		}
		keep = append(keep, u)
		if due {
			renew = append(renew, u)
		}
	}
	return keep, drop, renew, room
}

// yielding returns the indexes that make room for one whose absence has cost more, the least
// valuable first. Too little is known of a new index.
func (p *policy) yielding(all []usage, missed int64) (yielding []usage) {
	for _, u := range slices.Backward(all) {
		if u.worth() < missed && (u.before > 0 || u.age >= fadeAfter) {
			yielding = append(yielding, u)
		}
	}
	return yielding
}

// wanted returns the attribute whose index was missed most, and by how many elements, if that
// is more than buildAt times the cost of an index.
func (p *policy) wanted(missed map[attribute]miss, cost int64, excluded func(attribute) bool) (wanted attribute, most int64, ok bool) {
	most = p.buildAt * cost
	for candidate, m := range missed {
		if m.elements > most && !excluded(candidate) {
			wanted, most, ok = candidate, m.elements, true
		}
	}
	return wanted, most, ok
}

// adaptive holds the earned indexes: built by the cache itself, because scans without
// them compared more elements for nothing than an index costs.
type adaptive struct {
	policy
	most, percent int // Config.Adaptive and AdaptivePercent
	// earned is changed only by Adapt, which never writes to a map that was stored.
	earned atomic.Pointer[map[attribute]*earnedIndex]
	mu     struct {
		sync.Mutex
		// missed is the cost of the indexes that are absent.
		missed map[attribute]miss
	}
	// Owned by Adapt: the time when missed last faded, the position where the count of events
	// begins, which fades with it, and the time until which an index is not tried again.
	fadedAt time.Duration
	next    watchcache.Position
	refused map[attribute]time.Duration
}

// miss is how many reads lacked an index, and how many elements they compared for nothing.
type miss struct{ reads, elements int64 }

// earnedIndex is an index that reads have turned out to need.
type earnedIndex struct {
	name string
	// saved is the number of elements that reads have skipped since the index began to pay.
	saved atomic.Int64
	// Owned by Adapt: the time and the position at which the index began to pay, and the number
	// of elements saved in the period before.
	since  time.Duration
	next   watchcache.Position
	before int64
}

func newAdaptive(most, percent int) *adaptive {
	a := &adaptive{policy: policy{sampled, buildAt, payWithin}, most: most, percent: percent, refused: make(map[attribute]time.Duration)}
	if most <= 0 {
		a.sampled = math.MaxInt64
	}
	a.mu.missed = make(map[attribute]miss)
	a.earned.Store(&map[attribute]*earnedIndex{})
	return a
}

// blame is how many elements failed each of a query's equalities.
type blame [maxBlamed]int64

// add notes which equalities a sampled element fails.
func (b *blame) add(x *Indexes, q *Query, e *watchcache.Element) {
	for i := range q.equalities[:min(len(q.equalities), maxBlamed)] {
		equality := &q.equalities[i]
		if value, ok := x.value(equality.attribute, e); !ok || !slices.Contains(equality.values, value) {
			b[i] += x.adaptive.sampled
		}
	}
}

// countMissed counts, by attribute, the elements that a read has compared for nothing.
func (x *Indexes) countMissed(q *Query, b *blame) {
	earned := *x.adaptive.earned.Load()
	mu := &x.adaptive.mu
	mu.Lock()
	defer mu.Unlock()
	for i := range q.equalities[:min(len(q.equalities), maxBlamed)] {
		lacking := q.equalities[i].attribute
		if b[i] == 0 || x.declared[lacking] != nil || earned[lacking] != nil || len(lacking.name) > maxMissedName {
			continue
		}
		m, known := mu.missed[lacking]
		if !known {
			if len(mu.missed) >= maxMissed {
				evictRarest(mu.missed)
			}
			lacking.name = strings.Clone(lacking.name) // it may be a part of a long selector
		}
		mu.missed[lacking] = miss{m.reads + 1, m.elements + b[i]}
	}
}

// evictRarest removes an attribute that the fewest reads have missed. One that many reads miss
// stays, however many others are missed once.
func evictRarest(all map[attribute]miss) {
	delete(all, slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b attribute) int {
		return cmp.Compare(all[a].reads, all[b].reads)
	}))
}

// Adapted is an index that Adapt has built or dropped, or could not build.
type Adapted struct {
	Index   string
	Bytes   int64
	Dropped bool
	Err     error
}

// Adapt builds the index that reads have missed most, and drops indexes that don't pay, take too
// much memory, or have saved less than another one would have. It is called once a second, one
// call at a time. now never falls.
func (x *Indexes) Adapt(state *watchcache.State, now time.Duration) (changes []Adapted) {
	a, stats := x.adaptive, state.Stats()
	keep, drop, renew, room := a.review(a.usages(state, stats, now), stats.ObjectBytes/100*int64(a.percent))
	changes = a.drop(state, drop)
	for _, u := range renew {
		index := (*a.earned.Load())[u.attribute]
		index.since, index.next = now, stats.Next
		index.before = index.saved.Swap(0)
	}
	wanted, missed, ok := a.takeWanted(stats, now)
	if !ok {
		return changes
	}
	yielding := a.yielding(keep, missed)
	if len(keep)-len(yielding) >= a.most {
		return changes
	}
	mostBytes := room
	for _, u := range yielding {
		mostBytes += u.bytes
	}
	index := x.indexOf(wanted.indexName(), wanted)
	bytes, err := state.AddIndex(index, mostBytes)
	switch {
	case err == nil:
		n := 0 // as few as make room
		for kept := len(keep); n < len(yielding) && (kept-n >= a.most || bytes > room); n++ {
			room += yielding[n].bytes
		}
		changes = append(changes, a.drop(state, yielding[:n])...)
		earned := maps.Clone(*a.earned.Load())
		earned[wanted] = &earnedIndex{name: index.Name, since: now, next: stats.Next}
		a.earned.Store(&earned)
	case errors.Is(err, watchcache.ErrTooLarge):
		a.refused[wanted] = now + a.payWithin
	}
	a.mu.Lock()
	clear(a.mu.missed) // the reads may need no other index any more, or none that fits
	a.mu.Unlock()
	return append(changes, Adapted{Index: index.Name, Bytes: bytes, Err: err})
}

// usages returns the counts of the earned indexes, the most valuable first.
func (a *adaptive) usages(state *watchcache.State, stats watchcache.Stats, now time.Duration) (all []usage) {
	for attribute, index := range *a.earned.Load() {
		all = append(all, usage{
			attribute: attribute, saved: index.saved.Load(), before: index.before, cost: costOf(stats, index.next),
			age: now - index.since, bytes: state.IndexBytes(index.name),
		})
	}
	slices.SortFunc(all, func(x, y usage) int { return cmp.Compare(y.worth(), x.worth()) })
	return all
}

// drop drops indexes. No read that begins after it uses them.
func (a *adaptive) drop(state *watchcache.State, all []usage) (changes []Adapted) {
	for _, u := range all {
		earned := maps.Clone(*a.earned.Load())
		delete(earned, u.attribute)
		a.earned.Store(&earned)
		name := u.indexName()
		state.DropIndex(name)
		changes = append(changes, Adapted{Index: name, Bytes: u.bytes, Dropped: true})
	}
	return changes
}

// costOf returns the cost of building an index and keeping it from a position on, in elements
// that a scan looks at.
func costOf(stats watchcache.Stats, from watchcache.Position) int64 {
	return costOfElement*int64(stats.Objects) + costOfEvent*int64(stats.Next-max(from, stats.Start))
}

// takeWanted applies the policy to the missed indexes and fades their counts.
func (a *adaptive) takeWanted(stats watchcache.Stats, now time.Duration) (wanted attribute, missed int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.refused, func(_ attribute, until time.Duration) bool { return until <= now })
	earned := *a.earned.Load() // reads that began before it was there have missed them
	wanted, missed, ok = a.wanted(a.mu.missed, costOf(stats, a.next), func(candidate attribute) bool {
		_, refused := a.refused[candidate]
		return refused || earned[candidate] != nil
	})
	if now-a.fadedAt >= fadeAfter {
		a.fadedAt = now
		a.next = stats.Next - (stats.Next-max(a.next, stats.Start))/2
		for attribute, m := range a.mu.missed {
			a.mu.missed[attribute] = miss{m.reads / 2, m.elements / 2}
		}
	}
	return wanted, missed, ok
}

func (a attribute) indexName() string {
	if a.kind == byField {
		return storage.FieldIndex(a.name)
	}
	return storage.LabelIndex(a.name)
}

// Adaptive returns the names of the indexes that Adapt has built, sorted.
func (x *Indexes) Adaptive() []string {
	var names []string
	for _, index := range *x.adaptive.earned.Load() {
		names = append(names, index.name)
	}
	slices.Sort(names)
	return names
}
