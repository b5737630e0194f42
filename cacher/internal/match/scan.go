// SPDX-License-Identifier: Apache-2.0

package match

import (
	"math"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// indexRange is a range of a snapshot that holds all matches of a query: the
// elements that an index has under some values, or all keys if no index is
// named. A read bounds the range by its key prefix and its start.
type indexRange struct {
	index  string
	values []string
	earned *earnedIndex // nil for a declared index and for keys
}

// Scanned is the record of a Scan.
type Scanned struct {
	// Index is the name of the index that was read, "" if it was a range of keys.
	Index string
	// Evaluated is how many elements were looked at.
	Evaluated int
}

// Scan calls yield for each element of the snapshot that matches the query,
// from a key on ("": from the start), in key order, until yield returns false.
// Scan reads the narrowest range that the query allows. enough, if not nil, is
// asked before each element of that range, whether the element matches or not,
// and ends the scan there.
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

// ranges appends a range for each equality that an index serves. The
// predicate's IndexFields and IndexLabels need not be looked at: all that they
// can name is declared, and the namespace of a request is in its key.
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

// narrowest returns the shortest of the ranges, all keys if there is none.
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
