// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// table holds groups by a value of one attribute, those under one value in no order: groups
// whose queries require that value. An event looks up the groups under the values that it
// has, before and after; all others cannot be affected by it. A conjunction is found by any
// one of its equalities, so one is enough, and the rarest is best (Aguilera et al.,
// Matching Events in a Content-Based Subscription System, PODC 1999).
type table[M any] struct {
	attribute
	groups map[string][]*Group[M]
}

// filedBy returns the index of an attribute's table, which is negative if there is none.
func (all *Groups[M]) filedBy(at attribute) int {
	return slices.IndexFunc(all.filed, func(of *table[M]) bool { return of.attribute == at })
}

// File puts a group where the events that may affect it find it.
func (all *Groups[M]) File(g *Group[M]) {
	under := all.indexes.rarest(&g.Query)
	at := all.filedBy(under.attribute)
	if at < 0 {
		at = len(all.filed)
		all.filed = append(all.filed, &table[M]{attribute: under.attribute, groups: make(map[string][]*Group[M])})
	}
	groups := all.filed[at].groups
	g.under, g.slots = under, make([]int, len(under.values))
	for i, value := range under.values {
		g.slots[i] = len(groups[value])
		groups[value] = append(groups[value], g)
	}
}

// Unfile undoes File. Values and attributes under which no group is filed any
// more are freed.
func (all *Groups[M]) Unfile(g *Group[M]) {
	at := all.filedBy(g.under.attribute)
	groups := all.filed[at].groups
	for i, value := range g.under.values {
		bucket := groups[value]
		last := len(bucket) - 1
		moved := bucket[last]
		bucket[g.slots[i]] = moved
		moved.slots[slices.Index(moved.under.values, value)] = g.slots[i]
		bucket[last] = nil
		if groups[value] = bucket[:last]; last == 0 {
			delete(groups, value)
		}
	}
	if len(groups) == 0 {
		all.filed = slices.Delete(all.filed, at, at+1)
	}
}

// Candidates visits the filed groups that the event may affect, each once.
func (all *Groups[M]) Candidates(e *watchcache.Event, visit func(*Group[M])) {
	for _, of := range all.filed {
		all.indexes.values(of.attribute, e.Element, e.Previous, func(value string) {
			for _, g := range of.groups[value] {
				if g.looked != e.Position+1 {
					g.looked = e.Position + 1
					visit(g)
				}
			}
		})
	}
}
