// SPDX-License-Identifier: Apache-2.0

package match

import (
	"cmp"
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// floorAttributes returns the attributes that the state remembers evicted events by:
// key prefixes below the resource's, such as a namespace's, and the fields and labels
// that the resource's author has indexed.
func (x *Indexes) floorAttributes() []attribute {
	all := []attribute{{kind: byScope}}
	for at := range x.declared {
		all = append(all, at)
	}
	for field := range x.triggers {
		all = append(all, attribute{byField, field})
	}
	slices.SortFunc(all, func(a, b attribute) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name)) })
	return slices.Compact(all)
}

// Floors returns the attributes by which the state must remember evicted events. Fields and labels
// are taken as selectors see them, and not from the functions that index objects.
func (x *Indexes) Floors() []watchcache.Index {
	all := make([]watchcache.Index, len(x.floors))
	for i, at := range x.floors {
		all[i] = x.indexOf(at.name, at)
	}
	return all
}

// Interest returns the part of the history that a query is for, as precisely as the state
// divides it and as the weight of an Interest allows. An event outside of it does not affect
// the query.
func (x *Indexes) Interest(q *Query) *watchcache.Interest {
	of, room := new(watchcache.Interest), maxInterest
	require := func(at attribute, values []string) {
		i := slices.Index(x.floors, at)
		if i < 0 {
			return
		}
		takes := len(values)
		for _, value := range values {
			takes += weight(value)
		}
		if takes <= room {
			room -= takes
			of.Required = append(of.Required, watchcache.Requirement{Floor: i, Values: values})
		}
	}
	if !q.recursive {
		of.Key = q.key
	}
	// The prefix that says most is the longest one.
	scope := ""
	x.scopesOf(q.key, func(prefix string) { scope = prefix })
	if scope != "" {
		require(attribute{kind: byScope}, []string{scope})
	}
	for _, e := range q.equalities {
		require(e.attribute, e.values)
	}
	return of
}
