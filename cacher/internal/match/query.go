// SPDX-License-Identifier: Apache-2.0

package match

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Query is a key or key prefix and a predicate. Immutable.
type Query struct {
	key       string // ends with "/" if recursive
	recursive bool
	predicate storage.SelectionPredicate
	// everything is true if all keys in scope match.
	everything bool
	// nothing is true if the label selector matches no labels.
	nothing bool
	// equalities are required by the predicate, fields before labels, each in selector order. Empty
	// for a single key, which is narrower.
	equalities []equality
	// terms is the weight of the selectors without their text.
	terms int
}

// NewQuery returns a query. If recursive, key is a prefix and must end with "/".
func NewQuery(key string, recursive bool, predicate storage.SelectionPredicate) Query {
	q := Query{key: key, recursive: recursive, predicate: predicate, everything: IsEmpty(predicate)}
	if !q.everything {
		q.equalities, q.terms, q.nothing = analyse(&predicate)
	}
	if !recursive {
		q.equalities = nil
	}
	return q
}

// IsEmpty reports whether a predicate selects everything. Before k8s.io/apiserver v0.37, p.Empty
// panics on a nil selector and ignores the shard selector.
func IsEmpty(p storage.SelectionPredicate) bool {
	if p.ShardSelector != nil && !p.ShardSelector.Empty() {
		return false
	}
	if p.Label == nil {
		p.Label = labels.Everything()
	}
	if p.Field == nil {
		p.Field = fields.Everything()
	}
	return p.Empty()
}

// Key returns the key or key prefix.
func (q *Query) Key() string { return q.key }

// Everything reports whether all objects under a key prefix match.
func (q *Query) Everything() bool { return q.everything && q.recursive }

// covers reports whether a key is in scope. Since the prefix ends with "/", namespace ns1 does not
// cover ns11.
func (q *Query) covers(key string) bool {
	if q.recursive {
		return strings.HasPrefix(key, q.key)
	}
	return key == q.key
}

func (q *Query) matches(e *watchcache.Element) bool {
	if q.everything {
		return true
	}
	p := &q.predicate
	if p.Label != nil && !p.Label.Empty() && !p.Label.Matches(e.Labels) {
		return false
	}
	if p.Field != nil && !p.Field.Empty() && !p.Field.Matches(&e.Fields) {
		return false
	}
	if p.ShardSelector != nil {
		matches, err := p.MatchesSharding(e.Object)
		return matches && err == nil
	}
	return true
}

// Outcome is the effect of an event on a query.
type Outcome uint8

// The outcomes, each with its type of watch event.
const (
	Unaffected Outcome = iota // none
	Enters                    // ADDED
	Stays                     // MODIFIED
	Leaves                    // DELETED
	Outcomes                  // number of outcomes
)

// Alike reports whether selectors evaluate to the same before and after, except for shards. Most
// updates change neither labels nor fields, so one evaluation suffices.
func Alike(e *watchcache.Event) bool {
	return e.Type == watchcache.Modified && e.Element.SelectsAs(e.Previous)
}

// Outcome compares the query's result before and after an event. An update that leaves the query is
// a deletion to its watchers. alike is Alike(e) or false.
func (q *Query) Outcome(e *watchcache.Event, alike bool) Outcome {
	if !q.covers(e.Element.Key) {
		return Unaffected
	}
	if alike && q.predicate.ShardSelector == nil {
		if q.matches(e.Element) {
			return Stays
		}
		return Unaffected
	}
	before := e.Previous != nil && q.matches(e.Previous)
	after := e.Type != watchcache.Deleted && q.matches(e.Element)
	switch {
	case before && after:
		return Stays
	case after:
		return Enters
	case before:
		return Leaves
	}
	return Unaffected
}
