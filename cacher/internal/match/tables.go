// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// table holds groups by the values that their queries require of an attribute, unordered. An event
// looks up the groups under the values that it has, before and after, since it can't affect others.
// One equality finds a conjunction, and the rarest does so best (Aguilera et al., Matching Events
// in a Content-Based Subscription System, PODC 1999).
type table[M any] struct {
	attribute
	groups map[string][]*Group[M]
	slot   int // index in Groups.filed
}

// File files a group where events that may affect it find it. It returns false if the group is
// large and the large groups' weight limit is reached.
func (all *Groups[M]) File(g *Group[M]) bool {
	if g.weight > large {
		if all.dispatched+g.weight > maxDispatched {
			return false
		}
		all.dispatched += g.weight
	}
	under := all.indexes.rarest(&g.Query)
	filed := all.tables[under.attribute]
	if filed == nil {
		filed = &table[M]{attribute: under.attribute, groups: make(map[string][]*Group[M]), slot: len(all.filed)}
		all.filed, all.tables[under.attribute] = append(all.filed, filed), filed
	}
	groups := filed.groups
	g.under, g.slots = under, make([]int, len(under.values))
	for i, value := range under.values {
		g.slots[i] = len(groups[value])
		groups[value] = append(groups[value], g)
	}
	return true
}

// Unfile undoes File, and frees empty values and attributes.
func (all *Groups[M]) Unfile(g *Group[M]) {
	if g.weight > large {
		all.dispatched -= g.weight
	}
	filed := all.tables[g.under.attribute]
	groups := filed.groups
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
		last := len(all.filed) - 1
		moved := all.filed[last]
		all.filed[filed.slot], moved.slot = moved, filed.slot
		all.filed[last] = nil
		all.filed = all.filed[:last]
		delete(all.tables, filed.attribute)
	}
}

// Candidates visits each filed group that the event may affect once.
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
