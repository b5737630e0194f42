// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"slices"
	"strings"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// probes index groups by one equality that each one's selection requires, its
// access. An event looks up the groups under the values that it has, before
// and after; all others can't be affected by it. A conjunction is found by any
// one of its equalities, so one is enough, and the rarest is best (Aguilera et
// al., Matching Events in a Content-Based Subscription System, PODC 1999).
//
// The registry's lock guards it.
type probes struct {
	// prefix is the resource's key prefix; deeper prefixes are scopes.
	prefix string
	access accessor

	// tables are those in use, by attribute. An event is looked up in each.
	tables []*table
	// scopes holds groups by key prefix, such as a namespace's.
	scopes table
	// rest holds the groups that every event is for.
	rest bucket
}

// attribute is something that an element has a value of.
type attribute struct {
	kind attributeKind
	name string
}

type attributeKind uint8

const (
	byKey attributeKind = iota
	byTrigger
	byField
	byLabel
	byScope
	byNothing
)

// table holds groups by a value of one attribute.
type table struct {
	attribute
	buckets map[string]*bucket
}

// bucket holds the groups under one value, in no order.
type bucket struct{ places []place }

// place is a group in a bucket, and which of its registrations this is.
type place struct {
	group        *group
	registration int
}

// probe is one registration of a group.
type probe struct {
	table  *table // nil: in rest
	value  string
	bucket *bucket
	slot   int
}

func newProbes(prefix string, access accessor) probes {
	return probes{prefix: prefix, access: access, scopes: table{attribute: attribute{kind: byScope}}}
}

// insert registers g under its access and returns where.
func (p *probes) insert(g *group) []probe {
	at, values := p.access.of(&g.selected, p.prefix)
	if at.kind == byNothing {
		g.probed = []probe{{bucket: &p.rest}}
		p.rest.put(g, 0)
		return g.probed
	}
	t := p.table(at)
	g.probed = make([]probe, len(values))
	for i, value := range values {
		b := t.buckets[value]
		if b == nil {
			b = &bucket{}
			if t.buckets == nil {
				t.buckets = make(map[string]*bucket)
			}
			t.buckets[value] = b
		}
		g.probed[i] = probe{table: t, value: value, bucket: b}
		b.put(g, i)
	}
	return g.probed
}

func (p *probes) table(at attribute) *table {
	if at.kind == byScope {
		return &p.scopes
	}
	for _, t := range p.tables {
		if t.attribute == at {
			return t
		}
	}
	t := &table{attribute: at}
	p.tables = append(p.tables, t)
	return t
}

// remove undoes insert. Values and attributes that nobody is registered under
// any more are freed.
func (p *probes) remove(g *group) {
	for _, at := range g.probed {
		at.bucket.take(at.slot)
		if at.table == nil || len(at.bucket.places) > 0 {
			continue
		}
		delete(at.table.buckets, at.value)
		if len(at.table.buckets) == 0 && at.table != &p.scopes {
			p.tables = slices.DeleteFunc(p.tables, func(t *table) bool { return t == at.table })
		}
	}
}

func (b *bucket) put(g *group, registration int) {
	g.probed[registration].slot = len(b.places)
	b.places = append(b.places, place{group: g, registration: registration})
}

func (b *bucket) take(slot int) {
	last := len(b.places) - 1
	moved := b.places[last]
	b.places[slot] = moved
	moved.group.probed[moved.registration].slot = slot
	b.places[last] = place{}
	b.places = b.places[:last]
}

// candidates visits the groups that the event may affect, each once.
func (p *probes) candidates(e *watchcache.Event, visit func(*group)) {
	look := func(b *bucket) {
		if b == nil {
			return
		}
		for _, at := range b.places {
			if at.group.looked != e.Position+1 {
				at.group.looked = e.Position + 1
				visit(at.group)
			}
		}
	}
	for _, t := range p.tables {
		value, ok := p.access.value(t.attribute, e.Element)
		if ok {
			look(t.buckets[value])
		}
		if e.Previous == nil {
			continue
		}
		if before, had := p.access.value(t.attribute, e.Previous); had && (!ok || before != value) {
			look(t.buckets[before])
		}
	}
	if len(p.scopes.buckets) > 0 {
		for end := len(p.prefix); ; {
			next := strings.IndexByte(e.Element.Key[end:], '/')
			if next < 0 {
				break
			}
			end += next + 1
			look(p.scopes.buckets[e.Element.Key[:end]])
		}
	}
	look(&p.rest)
}
