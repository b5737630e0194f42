// SPDX-License-Identifier: Apache-2.0

package match

import (
	"math"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// indexRange is a range of a snapshot with all matches of a query, i.e. the elements with one of
// values in an index, or all keys if index is "".
type indexRange struct {
	index  string
	values []string
	earned *earnedIndex // or nil
}

// Scanned describes a Scan.
type Scanned struct {
	// Index is the name of the index read, or "".
	Index string
	// Evaluated is the number of elements compared.
	Evaluated int
}

// Scan calls yield for each matching element, in key order from a key on, until yield returns
// false. It reads the narrowest range that the query allows. If enough is not nil, Scan calls it
// before each element of that range, matching or not, and stops if it returns true.
func (x *Indexes) Scan(snapshot *watchcache.Snapshot, q *Query, from string, enough func() bool, yield func(*watchcache.Element) bool) (scanned Scanned) {
	var vain int64
	var blamed blame
	look := func(e *watchcache.Element) bool {
		if enough != nil && enough() {
			return false
		}
		scanned.Evaluated++
		if q.matchesInTurn(e) {
			return yield(e)
		}
		if vain++; vain%x.adaptive.sampled == 0 {
			blamed.add(x, q, e)
		}
		return true
	}
	switch {
	case q.Everything():
		snapshot.Range(q.key, from, look)
		return scanned
	case !q.recursive:
		if e := snapshot.Get(q.key); e != nil {
			look(e)
		}
		return scanned
	case q.nothing:
		return scanned
	}
	var few [4]indexRange
	r := narrowest(snapshot, x.ranges(snapshot, q, few[:0]), q.key, from)
	if r.index == "" {
		snapshot.Range(q.key, from, look)
	} else {
		scanned.Index = r.index
		snapshot.RangeIndexAny(r.index, r.values, q.key, from, look)
	}
	if r.earned != nil && from == "" {
		r.earned.saved.Add(max(0, int64(snapshot.Count(q.key, "")-scanned.Evaluated)))
	}
	if vain >= x.adaptive.sampled {
		x.countMissed(q, &blamed)
	}
	return scanned
}

// ranges appends a range for each indexed equality. We can ignore the predicate's IndexFields and
// IndexLabels, since they name only declared indexes, and a request's namespace, which is in its
// key.
func (x *Indexes) ranges(snapshot *watchcache.Snapshot, q *Query, found []indexRange) []indexRange {
	earned := *x.adaptive.earned.Load()
	for i := range q.equalities {
		e := &q.equalities[i]
		if index := x.declared[e.attribute]; index != nil {
			found = append(found, index.rangeOf(snapshot, e.values))
		} else if index := earned[e.attribute]; index != nil && snapshot.HasIndex(index.name) {
			found = append(found, indexRange{index: index.name, values: e.values, earned: index})
		}
	}
	return found
}

func narrowest(snapshot *watchcache.Snapshot, ranges []indexRange, prefix, from string) (best indexRange) {
	if len(ranges) == 1 {
		return ranges[0]
	}
	least := math.MaxInt
	for _, r := range ranges {
		if n := snapshot.CountIndex(r.index, r.values, prefix, from); n < least {
			best, least = r, n
		}
	}
	return best
}
