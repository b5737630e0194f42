// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// maxAccessValues is the largest "in" set that a group is registered under.
const maxAccessValues = 8

// accessor chooses a selection's access: the equality, of those that it
// requires, that the fewest elements are likely to satisfy.
type accessor struct {
	triggers storage.IndexerFuncs
	// indexed are the fields and labels that the resource's author has
	// indexed, and so expects to be selected by.
	indexed map[string]bool
}

// of returns the attribute to register a selection under and the values that
// it may have; byNothing if no equality is required.
func (a accessor) of(s *selected, prefix string) (attribute, []string) {
	if !s.recursive {
		return attribute{kind: byKey}, []string{s.key}
	}
	if at, value, ok := a.field(s.predicate.Field); ok {
		return at, []string{value}
	}
	if at, values, ok := a.label(s.predicate.Label); ok {
		return at, values
	}
	if len(s.key) > len(prefix) {
		return attribute{kind: byScope}, []string{s.key}
	}
	if s.predicate.Field != nil {
		if namespace, ok := s.predicate.Field.RequiresExactMatch("metadata.namespace"); ok {
			return attribute{kind: byField, name: "metadata.namespace"}, []string{namespace}
		}
	}
	return attribute{kind: byNothing}, nil
}

// field returns the best field equality: the name, a field with a trigger
// function, an indexed field, any other but the namespace.
func (a accessor) field(s fields.Selector) (best attribute, value string, ok bool) {
	if s == nil {
		return attribute{}, "", false
	}
	rank := 0
	for _, r := range s.Requirements() {
		if r.Operator != selection.Equals && r.Operator != selection.DoubleEquals {
			continue
		}
		at, n := attribute{kind: byField, name: r.Field}, 1
		switch {
		case r.Field == "metadata.namespace":
			continue
		case r.Field == "metadata.name":
			n = 4
		case a.triggers[r.Field] != nil:
			at.kind, n = byTrigger, 3
		case a.indexed[storage.FieldIndex(r.Field)]:
			n = 2
		}
		if n > rank {
			best, value, rank = at, r.Value, n
		}
	}
	return best, value, rank > 0
}

// label returns the best label equality or small set: an indexed label before
// others, fewer values before more.
func (a accessor) label(s labels.Selector) (best attribute, values []string, ok bool) {
	if s == nil {
		return attribute{}, nil, false
	}
	requirements, selectable := s.Requirements()
	if !selectable {
		return attribute{}, nil, false
	}
	bestIndexed := false
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
		default:
			continue
		}
		indexed := a.indexed[storage.LabelIndex(r.Key())]
		allowed := r.Values()
		better := !ok || (indexed && !bestIndexed) || (indexed == bestIndexed && len(allowed) < len(values))
		if len(allowed) == 0 || len(allowed) > maxAccessValues || !better {
			continue
		}
		best, values, ok, bestIndexed = attribute{kind: byLabel, name: r.Key()}, allowed.UnsortedList(), true, indexed
	}
	return best, values, ok
}

// value returns what an element has of an attribute, false if nothing.
func (a accessor) value(at attribute, e *watchcache.Element) (string, bool) {
	switch at.kind {
	case byKey:
		return e.Key, true
	case byTrigger:
		return a.triggers[at.name](e.Object), true
	case byField:
		return e.Fields.Get(at.name), true // a missing field selects as ""
	case byLabel:
		value, ok := e.Labels[at.name]
		return value, ok
	}
	return "", false
}
