// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"fmt"
	"slices"
)

// interruption is a stretch of history that the state has not seen event by
// event: versions strictly between from and to can be neither shown nor
// continued from.
type interruption struct{ from, to uint64 }

func (i interruption) hides(rv uint64) bool { return i.from < rv && rv < i.to }

// Carry makes elements the whole state, at rv, as Replace does, but as a
// continuation of the history so far: what differs becomes events, so that
// positions stay and watchers go on. What has happened to an object meanwhile
// is one change, to its latest state; one that came and went leaves no trace.
//
// left makes the last state of an object that is gone, at rv. Versions between
// the state's and rv stay closed: ErrExpired. Carry refuses with ErrBackwards
// a list that is older than the state, and with ErrGap one whose differences
// can't be told from the state's past; the state is then as before.
func (s *State) Carry(elements []*Element, rv uint64, received int64, left func(*Element) *Element) (events int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.mu.rv
	if rv < from {
		return 0, fmt.Errorf("a list at resourceVersion %d after %d: %w", rv, from, ErrBackwards)
	}
	changes, err := s.differencesLocked(elements, rv, left)
	if err != nil {
		return 0, err
	}
	for _, c := range changes {
		found, _ := s.mu.trees.primary.Get(item{key: c.Element.Key})
		e := &Event{RV: c.RV, Type: c.Type, Element: c.Element, Previous: found.element, Recorded: received, Received: received}
		c.Element.seal()
		s.setRVLocked(c.RV)
		s.setElementLocked(e)
		s.mu.window.push(e)
	}
	s.setRVLocked(rv)
	s.mu.complete = rv
	s.mu.interruptions = slices.DeleteFunc(s.mu.interruptions, func(i interruption) bool { return i.to <= s.mu.window.dropped })
	s.mu.interruptions = append(s.mu.interruptions, interruption{from: from, to: rv})
	return len(changes), nil
}

// differencesLocked returns what leads from the state to elements, in the
// order of resourceVersions; deletions, of which only the latest time is
// known, come last.
func (s *State) differencesLocked(elements []*Element, rv uint64, left func(*Element) *Element) ([]Change, error) {
	var changes []Change
	listed := make(map[string]struct{}, len(elements))
	for _, e := range elements {
		if _, twice := listed[e.Key]; twice {
			return nil, fmt.Errorf("%q is listed twice: %w", e.Key, ErrGap)
		}
		listed[e.Key] = struct{}{}
		found, exists := s.mu.trees.primary.Get(item{key: e.Key})
		c := Change{Type: Modified, Element: e, RV: e.RV}
		switch {
		case !exists:
			c.Type = Added
		case found.element.RV == e.RV:
			continue
		}
		if e.RV <= s.mu.rv || e.RV > rv {
			return nil, gap(c, fmt.Sprintf("it is listed at %d, the state is at %d", rv, s.mu.rv))
		}
		changes = append(changes, c)
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.RV, b.RV) })
	s.mu.trees.primary.Ascend(func(i item) bool {
		if _, stays := listed[i.key]; !stays {
			changes = append(changes, Change{Type: Deleted, Element: left(i.element), RV: rv})
		}
		return true
	})
	if len(changes) > 0 && rv == s.mu.rv {
		return nil, fmt.Errorf("a list differs from the state at the same resourceVersion %d: %w", rv, ErrGap)
	}
	return changes, nil
}

// interruptedLocked tells whether rv is in a stretch of history that was not
// seen.
func (s *State) interruptedLocked(rv uint64) bool {
	return slices.ContainsFunc(s.mu.interruptions, func(i interruption) bool { return i.hides(rv) })
}
