// SPDX-License-Identifier: Apache-2.0

package match

import (
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

// maxFiledValues is the largest "in" set under which a group is filed.
const maxFiledValues = 8

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

// equality is a necessary condition of a query, that the attribute has one of values. These are
// distinct, at least one, and clipped, so that appending copies them.
type equality struct {
	attribute
	values []string
}

// analyse returns a predicate's equalities, its weight without its text, and whether its label
// selector matches nothing.
func analyse(p *storage.SelectionPredicate) (found []equality, terms int, nothing bool) {
	var ofFields fields.Requirements
	if p.Field != nil {
		ofFields = p.Field.Requirements()
	}
	var ofLabels labels.Requirements
	if p.Label != nil {
		requirements, selectable := p.Label.Requirements()
		ofLabels, nothing = requirements, !selectable
	}
	if p.ShardSelector != nil {
		terms = len(p.ShardSelector.Requirements())
	}
	if terms += len(ofFields) + len(ofLabels); terms == 0 {
		return nil, 0, nothing
	}
	found = make([]equality, 0, len(ofFields)+len(ofLabels))
	for _, r := range ofFields {
		if isEquality(r.Operator) {
			found = append(found, equality{attribute{byField, r.Field}, []string{r.Value}})
		}
	}
	for i := range ofLabels {
		r := &ofLabels[i]
		if !isEquality(r.Operator()) && r.Operator() != selection.NotIn {
			continue
		}
		values := r.ValuesUnsorted()
		terms += len(values)
		if isEquality(r.Operator()) {
			slices.Sort(values)
			found = append(found, equality{attribute{byLabel, r.Key()}, slices.Clip(slices.Compact(values))})
		}
	}
	return found, terms, nothing
}

func isEquality(operator selection.Operator) bool {
	return operator == selection.Equals || operator == selection.DoubleEquals || operator == selection.In
}

// Ranks of the equalities under which a query can be filed, the rarest last.
const (
	rankNothing = iota
	rankNamespaceField
	rankKeyPrefix
	rankOtherLabel
	rankIndexedLabel
	rankOtherField
	rankIndexedField
	rankTriggerField
	rankName
)

// rarest returns the required equality that the fewest elements are likely to satisfy. We prefer
// attributes indexed by the resource's author, who expects selection by them, then fewer values.
// All elements satisfy byNothing.
func (x *Indexes) rarest(q *Query) equality {
	if !q.recursive {
		return equality{attribute{kind: byKey}, []string{q.key}}
	}
	best, rank := equality{attribute{kind: byNothing}, []string{""}}, rankNothing
	if len(q.key) > len(x.prefix) {
		best, rank = equality{attribute{kind: byScope}, []string{q.key}}, rankKeyPrefix
	}
	for _, e := range q.equalities {
		n := x.rank(&e)
		if n > rank || (n == rank && len(e.values) < len(best.values)) {
			best, rank = e, n
		}
	}
	if rank == rankTriggerField {
		best.kind = byTrigger
	}
	return best
}

func (x *Indexes) rank(e *equality) int {
	indexed := x.declared[e.attribute] != nil
	switch {
	case e.kind == byLabel && len(e.values) > maxFiledValues:
		return rankNothing
	case e.kind == byLabel && indexed:
		return rankIndexedLabel
	case e.kind == byLabel:
		return rankOtherLabel
	case e.name == namespaceField:
		return rankNamespaceField
	case e.name == nameField:
		return rankName
	case x.triggers[e.name] != nil:
		return rankTriggerField
	case indexed:
		return rankIndexedField
	}
	return rankOtherField
}

func (x *Indexes) value(at attribute, e *watchcache.Element) (string, bool) {
	switch at.kind {
	case byKey:
		return e.Key, true
	case byTrigger:
		return x.triggers[at.name](e.Object), true
	case byField:
		return e.Fields.Get(at.name), true // selectors treat a missing field as ""
	case byLabel:
		value, ok := e.Labels[at.name]
		return value, ok
	case byNothing:
		return "", true
	}
	return "", false
}
