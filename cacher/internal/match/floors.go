// SPDX-License-Identifier: Apache-2.0

package match

import (
	"cmp"
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// floorAttributes returns key prefixes below the resource's, e.g. a namespace's, and the fields and
// labels indexed by the resource's author.
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

// Floors returns the attributes by which the state must record evicted events. It reads fields and
// labels like a selector, instead of calling the configured index functions.
func (x *Indexes) Floors() []watchcache.Index {
	all := make([]watchcache.Index, len(x.floors))
	for i, at := range x.floors {
		all[i] = x.indexOf(at.name, at)
	}
	return all
}

// Interest returns the narrowest part of the history with all events that may affect the query,
// given the state's floors and the weight limit of an Interest.
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
	// The longest prefix is the narrowest.
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
