// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// reach is a range of a snapshot that holds all that a read can select: what
// an index has under some values, or all keys if it names none. A read bounds
// it by its key prefix and its start.
type reach struct {
	index  string
	values []string
}

// scan calls yield for each element of the snapshot that is selected, from a
// key on ("": from the start), in key order, until yield returns false. It
// looks at the narrowest range that the selection allows, and returns how many
// elements it looked at. enough, if not nil, is asked before each element of
// that range, selected or not, and ends the scan there.
func (c *engine) scan(snapshot *watchcache.Snapshot, s *selected, from string, enough func() bool, yield func(*watchcache.Element) bool) (evaluated int) {
	look := func(e *watchcache.Element) bool {
		if enough != nil && enough() {
			return false
		}
		evaluated++
		return !s.matches(e) || yield(e)
	}
	if s.recursive && s.everything {
		snapshot.Range(s.key, from, look)
		return evaluated
	}
	if !s.recursive {
		if e := snapshot.Get(s.key); e != nil {
			look(e)
		}
		return evaluated
	}
	requirements, selectable := labels.Requirements(nil), true
	if s.predicate.Label != nil {
		requirements, selectable = s.predicate.Label.Requirements()
	}
	if !selectable {
		return 0 // the selector wants nothing
	}
	prefix := c.prefixFor(snapshot, s)
	r := narrowest(snapshot, c.reaches(snapshot, s, requirements), prefix, from)
	if r.index == "" {
		snapshot.Range(prefix, from, look)
	} else {
		snapshot.RangeIndexAny(r.index, r.values, prefix, from, look)
	}
	return evaluated
}

// prefixFor returns the prefix of all keys that can be selected: the
// selection's own, or that of the namespace that its fields require.
func (c *engine) prefixFor(snapshot *watchcache.Snapshot, s *selected) string {
	if s.predicate.Field == nil {
		return s.key
	}
	namespace, ok := s.predicate.Field.RequiresExactMatch(namespaceField)
	if !ok || namespace == "" {
		return s.key
	}
	prefix := c.config.ResourcePrefix + namespace + "/"
	if !strings.HasPrefix(prefix, s.key) || snapshot.CountIndex(strayIndex, strayValues, "", "", 1) > 0 {
		return s.key
	}
	return prefix
}

// reaches returns a range for each requirement that an index serves. The
// predicate's IndexFields and IndexLabels need not be looked at: all that they
// can name is served, and the namespace of a request is in its key.
func (c *engine) reaches(snapshot *watchcache.Snapshot, s *selected, requirements labels.Requirements) (found []reach) {
	for i := range c.indexes {
		index := &c.indexes[i]
		switch {
		case index.field != "" && s.predicate.Field != nil:
			for _, r := range s.predicate.Field.Requirements() {
				if r.Field == index.field && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) {
					found = append(found, index.reach(snapshot, r.Value))
				}
			}
		case index.label != "":
			for i := range requirements {
				if r := &requirements[i]; r.Key() == index.label && isEquality(r.Operator()) {
					found = append(found, index.reach(snapshot, r.ValuesUnsorted()...))
				}
			}
		}
	}
	return found
}

func isEquality(operator selection.Operator) bool {
	return operator == selection.Equals || operator == selection.DoubleEquals || operator == selection.In
}

// narrowest returns the shortest of the ranges, all keys if there is none. It
// counts a few entries of each, then more: when one range ends, the longer
// ones need not be counted to their ends. Ranges that are all long are as good
// as each other.
func narrowest(snapshot *watchcache.Snapshot, reaches []reach, prefix, from string) reach {
	switch len(reaches) {
	case 0:
		return reach{}
	case 1:
		return reaches[0]
	}
	for most := 32; most <= 2048; most *= 8 {
		best, least := reach{}, most
		for _, r := range reaches {
			if n := snapshot.CountIndex(r.index, r.values, prefix, from, least); n < least {
				best, least = r, n
			}
		}
		if least < most {
			return best
		}
	}
	return reaches[0]
}
