// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// selection is what a client asks for, applied to one object after the other.
type selection struct {
	key       string // with the resource's prefix
	recursive bool
	predicate storage.SelectionPredicate
}

func newSelection(q Query) selection {
	s := selection{key: poddata.Prefix + q.In, recursive: !q.One, predicate: poddata.Predicate(q.Labels, q.Fields)}
	if q.Labels == largeSelector {
		s.predicate.Label = s.predicate.Label.Add(always())
	}
	return s
}

// largeSelector is the selector of the watches that a dispatcher has no room for.
const largeSelector = "color!=red"

// always is a requirement with very many values, which all objects satisfy.
var always = sync.OnceValue(func() labels.Requirement {
	values := make([]string, 5000)
	for i := range values {
		values[i] = strconv.Itoa(i)
	}
	r, err := labels.NewRequirement("no-such-label", operators.NotIn, values)
	if err != nil {
		panic(err)
	}
	return *r
})

func (s *selection) has(o *object) bool {
	if o == nil {
		return false
	}
	return s.inRange(o) && s.predicate.MatchesObjectAttributes(o.labels, o.fields)
}

func (s *selection) inRange(o *object) bool {
	return o.key == s.key || (s.recursive && strings.HasPrefix(o.key, s.key))
}

// of returns what is selected of a state, in the order of keys.
func (s *selection) of(state map[string]*object) (out []*object) {
	for _, o := range state {
		if s.has(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *object) int { return strings.Compare(a.name, b.name) })
	return out
}

// inScope returns how many objects of a state are in the range of keys, after the
// given one.
func (s *selection) inScope(state map[string]*object, after string) (n int) {
	for _, o := range state {
		if s.inRange(o) && o.key > after {
			n++
		}
	}
	return n
}

// event returns what a watcher is told of a change, "" if nothing.
func (s *selection) event(c change) string {
	was, is := s.has(c.before), s.has(c.after)
	switch {
	case was && is:
		return "MODIFIED " + c.after.text
	case is:
		return "ADDED " + c.after.text
	case was:
		return "DELETED " + c.before.at(c.rv)
	}
	return ""
}
