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

	"github.com/kube-watchcache/watchcache/internal/eager"
	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	// The cost of an index, in elements that are looked at: of building it, for each
	// element, and of keeping it, for each event.
	costOfElement, costOfEvent = 3, 30
	// buildAt is how many times the cost of an index its absence must have cost. The cost of
	// the past counts half after each fadeAfter.
	buildAt   = 4
	fadeAfter = time.Minute
	// payWithin is for how long an index may save less than it costs, and for how long one that
	// was too large is not tried again.
	payWithin = 10 * time.Minute
	// sampled is how many elements that were looked at in vain stand for each that is
	// examined for the reason.
	sampled = 64
	// maxMissed bounds the attributes that are counted, maxMissedName the length of their names
	// in bytes, and maxBlamed the equalities of a query.
	maxMissed, maxMissedName, maxBlamed = 64, 512, 8
)

// adaptive holds the earned indexes, which no configuration has, and which reads have turned out
// to need: without one, they look at more elements in vain than an index costs.
type adaptive struct {
	most, percent int   // Config.Adaptive and AdaptivePercent
	every         int64 // sampled, but for tests and where no index may be built
	// earned is changed only by Adapt, which never writes to a map that was stored.
	earned atomic.Pointer[map[attribute]*earnedIndex]
	mu     struct {
		sync.Mutex
		// missed is the cost of the indexes that are absent.
		missed map[attribute]miss
	}
	// The fields below belong to Adapt. since is the time when missed last faded, next the
	// position where the count of events begins, which fades likewise, and refused the time
	// until an index may be built again.
	since   time.Duration
	next    watchcache.Position
	refused map[attribute]time.Duration
}

// miss is how many reads have missed an index, and how many elements they have looked at in
// vain.
type miss struct{ reads, elements int64 }

// earnedIndex is an index that reads have turned out to need.
type earnedIndex struct {
	name string
	// saved is how many elements reads have not looked at since the index began to pay.
	saved atomic.Int64
	// The fields below belong to Adapt. since and next are the time and the position at which
	// the index began to pay, and before the count of saved in the time before that.
	since  time.Duration
	next   watchcache.Position
	before int64
}

// worth returns how many elements the index has saved lately.
func (i *earnedIndex) worth() int64 { return i.before + i.saved.Load() }

// yields reports whether the index makes room for one whose absence has cost more. Of an
// index that is new too little is known.
func (i *earnedIndex) yields(missed int64, now time.Duration) bool {
	return i.worth() < missed && (i.before > 0 || now-i.since >= fadeAfter)
}

func newAdaptive(most, percent int) *adaptive {
	a := &adaptive{most: most, percent: percent, every: sampled, refused: make(map[attribute]time.Duration)}
	switch {
	case most <= 0:
		a.every = math.MaxInt64
	case eager.Indexes():
		a.every = 1
	}
	a.mu.missed = make(map[attribute]miss)
	a.earned.Store(&map[attribute]*earnedIndex{})
	return a
}

// blame is how many elements failed each of a query's equalities.
type blame [maxBlamed]int64

// add notes which equalities an element fails that stands for sampled ones.
func (b *blame) add(x *Indexes, q *Query, e *watchcache.Element) {
	for i := range q.equalities[:min(len(q.equalities), maxBlamed)] {
		of := &q.equalities[i]
		if value, ok := x.value(of.attribute, e); !ok || !slices.Contains(of.values, value) {
			b[i] += x.adaptive.every
		}
	}
}

// countMissed counts, by attribute, the elements that a read has looked at in vain.
func (x *Indexes) countMissed(q *Query, b *blame) {
	earned := *x.adaptive.earned.Load()
	mu := &x.adaptive.mu
	mu.Lock()
	defer mu.Unlock()
	for i := range q.equalities[:min(len(q.equalities), maxBlamed)] {
		at := q.equalities[i].attribute
		if b[i] == 0 || x.declared[at] != nil || earned[at] != nil || len(at.name) > maxMissedName {
			continue
		}
		m, known := mu.missed[at]
		if !known {
			if len(mu.missed) >= maxMissed {
				evictRarest(mu.missed)
			}
			at.name = strings.Clone(at.name) // which may be a part of a long selector
		}
		mu.missed[at] = miss{m.reads + 1, m.elements + b[i]}
	}
}

// evictRarest removes the attribute that the fewest reads have missed, any one of these. So
// one that is missed again and again stays, however many others are missed once.
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

// Adapt has the state keep an index that reads have missed, and drop indexes that don't
// pay, that take too much memory, or that have saved less than another one would have. It is
// called once a second, one call at a time. now is a time that never falls.
func (x *Indexes) Adapt(state *watchcache.State, now time.Duration) (changes []Adapted) {
	a, stats := x.adaptive, state.Stats()
	room := stats.ObjectBytes / 100 * int64(a.percent)
	earned := maps.Clone(*a.earned.Load())
	drop := func(at attribute) {
		name, bytes := earned[at].name, state.IndexBytes(earned[at].name)
		changes, room = append(changes, Adapted{Index: name, Bytes: bytes, Dropped: true}), room+bytes
		delete(earned, at)
		a.earned.Store(new(maps.Clone(earned)))
		state.DropIndex(name)
	}
	ranked := slices.SortedFunc(maps.Keys(earned), func(i, j attribute) int { // by worth, the least last
		return cmp.Compare(earned[j].worth(), earned[i].worth())
	})
	for _, at := range ranked {
		index := earned[at]
		room -= state.IndexBytes(index.name)
		due := now-index.since >= payWithin || a.every == 1 && now-index.since >= 3*time.Second
		switch pays := index.saved.Load() > costOf(stats, index.next); {
		case room < 0 || due && !pays:
			drop(at)
		case due:
			index.since, index.next, index.before = now, stats.Next, index.saved.Swap(0)
		}
	}
	at, missed, ok := a.wanted(stats, now)
	if !ok {
		return changes
	}
	mostBytes, yielding := room, []attribute(nil)
	for _, other := range slices.Backward(ranked) {
		if index := earned[other]; index != nil && index.yields(missed, now) {
			yielding, mostBytes = append(yielding, other), mostBytes+state.IndexBytes(index.name)
		}
	}
	if len(earned)-len(yielding) >= a.most {
		return changes
	}
	index := x.indexOf(at.indexName(), at)
	bytes, err := state.AddIndex(index, mostBytes)
	switch {
	case err == nil:
		for ; len(yielding) > 0 && (len(earned) >= a.most || bytes > room); yielding = yielding[1:] {
			drop(yielding[0])
		}
		earned[at] = &earnedIndex{name: index.Name, since: now, next: stats.Next}
		a.earned.Store(&earned)
	case errors.Is(err, watchcache.ErrTooLarge):
		a.refused[at] = now + payWithin
	}
	a.mu.Lock()
	clear(a.mu.missed) // the reads may need no other index any more, or none that fits
	a.mu.Unlock()
	return append(changes, Adapted{Index: index.Name, Bytes: bytes, Err: err})
}

// costOf returns what an index costs that is built and then kept from a position on, in
// elements that are looked at.
func costOf(stats watchcache.Stats, from watchcache.Position) int64 {
	return costOfElement*int64(stats.Objects) + costOfEvent*int64(stats.Next-max(from, stats.Start))
}

// wanted returns the attribute whose index was missed most, and by how many elements, if
// that is enough.
func (a *adaptive) wanted(stats watchcache.Stats, now time.Duration) (wanted attribute, missed int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	missed = buildAt * costOf(stats, a.next)
	if a.every == 1 {
		missed = 0
	}
	maps.DeleteFunc(a.refused, func(_ attribute, until time.Duration) bool { return until <= now })
	earned := *a.earned.Load() // which reads that began before it was there have missed
	for at, m := range a.mu.missed {
		if _, refused := a.refused[at]; m.elements > missed && !refused && earned[at] == nil {
			wanted, missed, ok = at, m.elements, true
		}
	}
	if now-a.since >= fadeAfter {
		a.since, a.next = now, stats.Next-(stats.Next-max(a.next, stats.Start))/2
		for at, m := range a.mu.missed {
			a.mu.missed[at] = miss{m.reads / 2, m.elements / 2}
		}
	}
	return wanted, missed, ok
}

func (at attribute) indexName() string {
	if at.kind == byField {
		return storage.FieldIndex(at.name)
	}
	return storage.LabelIndex(at.name)
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
