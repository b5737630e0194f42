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
	// Costs of an index, in elements scanned: costOfElement per element to build it, and
	// costOfEvent per event to keep it.
	costOfElement, costOfEvent = 3, 30
	// fadeAfter is the half-life of the counts.
	fadeAfter = time.Minute
	// maxMissed bounds the attributes counted, maxMissedName their names' bytes, and maxBlamed the
	// equalities counted per query.
	maxMissed, maxMissedName, maxBlamed = 64, 512, 8
)

// policy decides from counts which indexes to build and drop. Its methods are pure.
type policy struct {
	// sampled is the number of mismatches per examined one.
	sampled int64
	// buildAt is how much more than its own cost scans without an index must have cost for it to be
	// built, as a factor.
	buildAt int64
	// payWithin is the time within which an index must save more than it costs.
	payWithin time.Duration
}

const (
	sampled   = 64
	buildAt   = 4
	payWithin = 10 * time.Minute
)

type usage struct {
	attribute
	// saved and cost are the elements that reads skipped, and the price of the index, in this
	// period. before is saved of the period before it.
	saved, before, cost int64
	// age is the time since this period began.
	age   time.Duration
	bytes int64
}

func (u *usage) worth() int64 { return u.before + u.saved }

// review divides all, sorted by worth, into indexes to keep and to drop. renew is the kept ones at
// the end of their period. room is the memory for all indexes, left the remainder.
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

// yielding returns the indexes that saved fewer than missed elements, the least valuable first. It
// spares new indexes, whose worth isn't known yet.
func (p *policy) yielding(all []usage, missed int64) (yielding []usage) {
	for _, u := range slices.Backward(all) {
		if u.worth() < missed && (u.before > 0 || u.age >= fadeAfter) {
			yielding = append(yielding, u)
		}
	}
	return yielding
}

// wanted returns the attribute with the most missed elements, if more than buildAt times cost.
func (p *policy) wanted(missed map[attribute]miss, cost int64, excluded func(attribute) bool) (wanted attribute, most int64, ok bool) {
	most = p.buildAt * cost
	for candidate, m := range missed {
		if m.elements > most && !excluded(candidate) {
			wanted, most, ok = candidate, m.elements, true
		}
	}
	return wanted, most, ok
}

// adaptive holds the earned indexes, which the cache builds itself.
type adaptive struct {
	policy
	most, percent int // Config.Adaptive and AdaptivePercent
	// Only Adapt replaces earned. A stored map is immutable.
	earned atomic.Pointer[map[attribute]*earnedIndex]
	mu     struct {
		sync.Mutex
		// missed is the cost of scans without indexes.
		missed map[attribute]miss
	}
	// Owned by Adapt. fadedAt is when missed was last halved, next the position from which wanted
	// counts events, and refused has the end of each index's refusal.
	fadedAt time.Duration
	next    watchcache.Position
	refused map[attribute]time.Duration
}

// miss counts the reads that lacked an index, and their mismatches.
type miss struct{ reads, elements int64 }

type earnedIndex struct {
	name string
	// saved is the number of elements skipped by reads in this period.
	saved atomic.Int64
	// Owned by Adapt: start time and position of this period, and saved of the period before.
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

type blame [maxBlamed]int64

func (b *blame) add(x *Indexes, q *Query, e *watchcache.Element) {
	for i := range q.equalities[:min(len(q.equalities), maxBlamed)] {
		equality := &q.equalities[i]
		if value, ok := x.value(equality.attribute, e); !ok || !slices.Contains(equality.values, value) {
			b[i] += x.adaptive.sampled
		}
	}
}

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
			lacking.name = strings.Clone(lacking.name) // it may be a substring of a long selector
		}
		mu.missed[lacking] = miss{m.reads + 1, m.elements + b[i]}
	}
}

// evictRarest removes an attribute missed by the fewest reads, so that attributes missed once can't
// displace a popular one.
func evictRarest(all map[attribute]miss) {
	delete(all, slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b attribute) int {
		return cmp.Compare(all[a].reads, all[b].reads)
	}))
}

// Adapted is a change made by Adapt, or a failed one.
type Adapted struct {
	Index   string
	Bytes   int64
	Dropped bool
	Err     error
}

// Adapt builds the index that reads missed most, and drops indexes that don't pay, take too much
// memory, or save less than another one would. Call it once a second, one call at a time, with now
// from a monotonic clock.
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
		n := 0 // drop as few as make room
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
	clear(a.mu.missed)
	a.mu.Unlock()
	return append(changes, Adapted{Index: index.Name, Bytes: bytes, Err: err})
}

// usages returns the earned indexes by falling worth.
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

// costOf returns the cost of building an index and keeping it since from.
func costOf(stats watchcache.Stats, from watchcache.Position) int64 {
	return costOfElement*int64(stats.Objects) + costOfEvent*int64(stats.Next-max(from, stats.Start))
}

func (a *adaptive) takeWanted(stats watchcache.Stats, now time.Duration) (wanted attribute, missed int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.refused, func(_ attribute, until time.Duration) bool { return until <= now })
	earned := *a.earned.Load() // may include attributes missed by reads before their index
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

// Adaptive returns the sorted names of the indexes built by Adapt.
func (x *Indexes) Adaptive() []string {
	var names []string
	for _, index := range *x.adaptive.earned.Load() {
		names = append(names, index.name)
	}
	slices.Sort(names)
	return names
}
