// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"strings"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// selected is what a watcher or a read asks for: a key or a key prefix, and a
// predicate. It is immutable.
type selected struct {
	key       string // with a trailing "/" if recursive
	recursive bool
	predicate storage.SelectionPredicate
	// everything: all keys in scope match.
	everything bool
}

func newSelected(key string, recursive bool, predicate storage.SelectionPredicate) selected {
	return selected{key: key, recursive: recursive, predicate: predicate, everything: predicate.Empty()}
}

// covers tells whether a key is in scope. The prefix ends with "/", so that
// namespace ns1 does not cover ns11.
func (s *selected) covers(key string) bool {
	if s.recursive {
		return strings.HasPrefix(key, s.key)
	}
	return key == s.key
}

// matches tells whether an element in scope satisfies the predicate.
func (s *selected) matches(e *watchcache.Element) bool {
	if s.everything {
		return true
	}
	p := &s.predicate
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

// outcome is what an event is to a selection.
type outcome uint8

const (
	unaffected outcome = iota
	enters             // ADDED
	stays              // MODIFIED
	leaves             // DELETED
	outcomes
)

// selectsAlike tells whether selectors can't tell before from after: most
// updates change neither labels nor fields, and then one look is enough.
func selectsAlike(e *watchcache.Event) bool {
	return e.Type == watchcache.Modified && e.Element.SelectsAs(e.Previous)
}

// outcome compares before and after: an update that leaves the selection is a
// deletion to who watches it, one that enters it an addition. alike is what
// selectsAlike says of the event.
func (s *selected) outcome(e *watchcache.Event, alike bool) outcome {
	if !s.covers(e.Element.Key) {
		return unaffected
	}
	if alike && s.predicate.ShardSelector == nil {
		if s.matches(e.Element) {
			return stays
		}
		return unaffected
	}
	before := e.Previous != nil && s.matches(e.Previous)
	after := e.Type != watchcache.Deleted && s.matches(e.Element)
	switch {
	case before && after:
		return stays
	case after:
		return enters
	case before:
		return leaves
	}
	return unaffected
}
