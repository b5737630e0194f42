// SPDX-License-Identifier: Apache-2.0

package match

import (
	"reflect"
	"slices"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Group is all watchers of one query: an event is evaluated for them once. The
// lock that guards the Groups guards its fields; the Query is immutable.
type Group[M any] struct {
	Query
	Name Name
	// Members receive the events; the caller keeps them. A group is
	// filed while it has any.
	Members []M
	// Slot is the caller's, to find its own record of the group.
	Slot int
	// users counts the calls of Join that Leave has not undone.
	users int
	// weight is the query's.
	weight int
	// under is the equality that the group is filed under, and slots has its place among
	// the groups of each value.
	under equality
	slots []int
	// looked is the position after the last event that the group was visited
	// for, so that one visit is made however many filings lead to it.
	looked watchcache.Position
}

// Groups holds the groups that have users, by name, and the tables that map an event to
// the groups that it may affect. A name has one group for each query with that name. The
// caller guards Groups with a lock.
type Groups[M any] struct {
	indexes *Indexes
	byName  map[Name][]*Group[M] // groups that queries share
	filed   []*table[M]
	tables  map[attribute]*table[M] // those of filed
	// dispatched is the sum of the weights of the filed groups that are large.
	dispatched int
}

// NewGroups returns empty Groups, which file queries by the indexes.
func NewGroups[M any](indexes *Indexes) *Groups[M] {
	return &Groups[M]{indexes: indexes, byName: make(map[Name][]*Group[M]), tables: make(map[attribute]*table[M])}
}

// Name is the key of a query and the string forms of its selectors. Queries
// that are the same have the same name. Different ones may have it, too: the
// selector of nothing and the one of everything are both "", and "a!=b" is one
// condition of a field called "a" and another of a field called "a!".
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

// Join returns the group of a query. The caller makes the name before it takes its lock,
// because that may take long. A heavy query has a group of its own. Leave undoes Join.
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

// Leave undoes one Join. A group that nobody uses any more is forgotten.
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

// sameAs reports whether two queries of one name are the same. It compares the whole
// structure of selectors, because their interfaces don't distinguish all of them: a
// conjunction, for example, omits a Nothing in it from its requirements. Equivalent
// selectors of different structure get a group each, which only costs an evaluation.
func (q *Query) sameAs(other *Query) bool {
	return equal(q.predicate.Label, other.predicate.Label) &&
		equal(q.predicate.Field, other.predicate.Field) &&
		equal(q.predicate.ShardSelector, other.predicate.ShardSelector)
}

// equal compares selectors. One that selects everything is as good as none.
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
