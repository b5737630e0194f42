// SPDX-License-Identifier: Apache-2.0

package match

import (
	"reflect"
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Group is all watchers of one query. We evaluate an event for them once. Guarded by the lock of
// its Groups.
type Group[M any] struct {
	Query
	Name Name
	// Members receive the events. The caller maintains them, and files the group while it has any.
	Members []M
	// Slot is the index of the caller's own record of the group.
	Slot   int
	users  int
	weight int
	// under is the equality under which the group is filed, and slots its index among the groups of
	// each value.
	under equality
	slots []int
	// looked is the position after the last event visited, so that an event found under several
	// values visits the group once.
	looked watchcache.Position
}

// Groups holds the groups with users, by name, and the tables that map an event to the groups that
// it may affect. Caller must guard it with a lock.
type Groups[M any] struct {
	indexes *Indexes
	byName  map[Name][]*Group[M] // without heavy queries
	filed   []*table[M]
	tables  map[attribute]*table[M] // of filed
	// dispatched is the sum of the weights of the large filed groups.
	dispatched int
}

// NewGroups returns empty Groups whose queries are filed by indexes.
func NewGroups[M any](indexes *Indexes) *Groups[M] {
	return &Groups[M]{indexes: indexes, byName: make(map[Name][]*Group[M]), tables: make(map[attribute]*table[M])}
}

// Name is the key of a query and the string forms of its selectors. Different queries may have
// equal names, because the selectors of nothing and of everything are both "", and "a!=b" may be a
// condition on field "a" or "a!".
type Name struct {
	Key          string
	Label, Field string
	shards       string
	ofPrefix     bool
}

// Name returns the name of the query.
func (q *Query) Name() Name {
	name := Name{Key: q.key, ofPrefix: q.recursive}
	if q.predicate.Label != nil {
		name.Label = q.predicate.Label.String()
	}
	if q.predicate.Field != nil {
		name.Field = q.predicate.Field.String()
	}
	if q.predicate.ShardSelector != nil {
		name.shards = q.predicate.ShardSelector.String()
	}
	return name
}

// Join returns the group of a query. The caller should compute name, which may take long, before it
// takes its lock. A heavy query gets its own group.
func (all *Groups[M]) Join(name Name, q Query) *Group[M] {
	g := &Group[M]{Query: q, Name: name, users: 1}
	g.weight = q.terms + weight(name.Key) + weight(name.Label) + weight(name.Field) + weight(name.shards)
	if g.weight > heavy {
		return g
	}
	for _, other := range all.byName[name] {
		if other.sameAs(&q) {
			other.users++
			return other
		}
	}
	all.byName[name] = append(all.byName[name], g)
	return g
}

// Leave undoes one Join.
func (all *Groups[M]) Leave(g *Group[M]) {
	g.users--
	if g.users > 0 || g.weight > heavy {
		return
	}
	rest := slices.DeleteFunc(all.byName[g.Name], func(other *Group[M]) bool { return other == g })
	if len(rest) == 0 {
		delete(all.byName, g.Name)
		return
	}
	all.byName[g.Name] = rest
}

// sameAs reports whether two queries of one name are equal. It compares the structure of the
// selectors, because their interfaces don't distinguish all of them: e.g. a conjunction omits a
// Nothing in it from its requirements. Equivalent selectors of different structure only cost an
// evaluation each.
func (q *Query) sameAs(other *Query) bool {
	return equal(q.predicate.Label, other.predicate.Label) &&
		equal(q.predicate.Field, other.predicate.Field) &&
		equal(q.predicate.ShardSelector, other.predicate.ShardSelector)
}

// equal treats a selector of everything as nil.
func equal[S interface {
	comparable
	Empty() bool
}](a, b S) bool {
	var none S
	if a != none && a.Empty() {
		a = none
	}
	if b != none && b.Empty() {
		b = none
	}
	return reflect.DeepEqual(a, b)
}
