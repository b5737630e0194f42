// SPDX-License-Identifier: Apache-2.0

package match

import (
	"strings"

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
		if q.matches(e) {
			return yield(e)
		}
		if vain++; vain%x.adaptive.every == 0 {
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
	prefix := x.prefixFor(snapshot, q)
	var few [4]indexRange
	r := narrowest(snapshot, x.ranges(snapshot, q, few[:0]), prefix, from)
	if r.index == "" {
		snapshot.Range(prefix, from, look)
	} else {
		scanned.Index = r.index
		snapshot.RangeIndexAny(r.index, r.values, prefix, from, look)
	}
	if r.earned != nil && from == "" {
		r.earned.countSaved(snapshot, prefix, scanned.Evaluated)
	}
	if vain >= x.adaptive.every {
		x.countMissed(q, &blamed)
	}
	return scanned
}

// prefixFor returns the prefix of all keys that can match: the query's own, or
// the one of the namespace that its fields require.
func (x *Indexes) prefixFor(snapshot *watchcache.Snapshot, q *Query) string {
	namespace := q.namespace()
	if namespace == "" {
		return q.key
	}
	prefix := x.prefix + namespace + "/"
	if !strings.HasPrefix(prefix, q.key) || snapshot.CountIndex(strayIndex, strayValues, "", "", 1) > 0 {
		return q.key
	}
	return prefix
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
// narrowest counts a few entries of each, then more: when one range ends, the
// longer ones need not be counted to their ends. Ranges that are all long are
// as good as each other.
func narrowest(snapshot *watchcache.Snapshot, ranges []indexRange, prefix, from string) indexRange {
	switch len(ranges) {
	case 0:
		return indexRange{}
	case 1:
		return ranges[0]
	}
	for most := 32; most <= 2048; most *= 8 {
		best, least := indexRange{}, most
		for _, r := range ranges {
			if n := snapshot.CountIndex(r.index, r.values, prefix, from, least); n < least {
				best, least = r, n
			}
		}
		if least < most {
			return best
		}
	}
	return ranges[0]
}
