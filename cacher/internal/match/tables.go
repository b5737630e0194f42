// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// tables hold groups by one equality that the query of each requires. An event
// looks up the groups under the values that it has, before and after; all
// others cannot be affected by it. A conjunction is found by any one of its
// equalities, so one is enough, and the rarest is best (Aguilera et al.,
// Matching Events in a Content-Based Subscription System, PODC 1999).
type tables[M any] struct {
	// inUse are the tables that have groups, by attribute. An event is looked up
	// in each.
	inUse []*table[M]
	// rest holds the groups that every event is for.
	rest bucket[M]
}

// table holds groups by a value of one attribute.
type table[M any] struct {
	attribute
	buckets map[string]*bucket[M]
}

// bucket holds the groups under one value, in no order.
type bucket[M any] struct{ entries []entry[M] }

// entry is a group in a bucket, and which of the group's filings this is.
type entry[M any] struct {
	group  *Group[M]
	filing int
}

// filing is one place where a group is filed.
type filing[M any] struct {
	table  *table[M] // nil: in rest
	value  string
	bucket *bucket[M]
	slot   int
}

// file puts g under an equality, and notes in g where.
func (t *tables[M]) file(g *Group[M], under equality) {
	if under.kind == byNothing {
		g.filed = []filing[M]{{bucket: &t.rest}}
		t.rest.put(g, 0)
		return
	}
	of := t.table(under.attribute)
	g.filed = make([]filing[M], len(under.values))
	for i, value := range under.values {
		b := of.buckets[value]
		if b == nil {
			b = &bucket[M]{}
			of.buckets[value] = b
		}
		g.filed[i] = filing[M]{table: of, value: value, bucket: b}
		b.put(g, i)
	}
}

func (t *tables[M]) table(at attribute) *table[M] {
	for _, of := range t.inUse {
		if of.attribute == at {
			return of
		}
	}
	of := &table[M]{attribute: at, buckets: make(map[string]*bucket[M])}
	t.inUse = append(t.inUse, of)
	return of
}

// remove undoes file. Values and attributes under which no group is filed any
// more are freed.
func (t *tables[M]) remove(g *Group[M]) {
	for _, at := range g.filed {
		at.bucket.take(at.slot)
		if at.table == nil || len(at.bucket.entries) > 0 {
			continue
		}
		delete(at.table.buckets, at.value)
		if len(at.table.buckets) == 0 {
			t.inUse = slices.DeleteFunc(t.inUse, func(of *table[M]) bool { return of == at.table })
		}
	}
	g.filed = nil
}

func (b *bucket[M]) put(g *Group[M], filing int) {
	g.filed[filing].slot = len(b.entries)
	b.entries = append(b.entries, entry[M]{group: g, filing: filing})
}

func (b *bucket[M]) take(slot int) {
	last := len(b.entries) - 1
	moved := b.entries[last]
	b.entries[slot] = moved
	moved.group.filed[moved.filing].slot = slot
	b.entries[last] = entry[M]{}
	b.entries = b.entries[:last]
}

// Candidates visits the filed groups that the event may affect, each once.
func (all *Groups[M]) Candidates(e *watchcache.Event, visit func(*Group[M])) {
	look := func(b *bucket[M]) {
		if b == nil {
			return
		}
		for _, at := range b.entries {
			if at.group.looked != e.Position+1 {
				at.group.looked = e.Position + 1
				visit(at.group)
			}
		}
	}
	x := all.indexes
	for _, of := range all.filed.inUse {
		x.values(of.attribute, e.Element, e.Previous, func(value string) { look(of.buckets[value]) })
	}
	look(&all.filed.rest)
}
