// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"cmp"
	"fmt"
	"slices"
)

// interruption is a part of the history that the state has not seen event by
// event: resourceVersions strictly between from and to can be neither read nor
// continued from.
type interruption struct{ from, to uint64 }

func (i interruption) hides(rv uint64) bool { return i.from < rv && rv < i.to }

// Carry makes elements the whole state, at rv, as Replace does, but as a
// continuation of the history so far: the differences become events, so that
// positions stay valid and watchers go on. Several changes of one object since
// then become one event, to its latest state; an object that was created and
// deleted since then becomes none.
//
// deleted makes the last state of an object that is gone, at rv, from the
// element that the state has. The resourceVersions between the one that the
// state shows and rv can't be read or continued from: ErrExpired. Carry returns
// ErrBackwards for a list that is older than the state, and ErrGap for a list
// whose differences can't be explained by changes after the state's
// resourceVersion; the state is then as before. received is the time of the
// events; see Event.Received.
//
// Carry finds the differences, and makes the trees, without holding the state's
// lock: only the one writer changes them. Readers see the old state until the
// new one is complete.
func (s *State) Carry(elements []*Element, rv uint64, received int64, deleted func(*Element) *Element) (events int, err error) {
	s.mu.Lock()
	c := carried{
		config: &s.config, trees: s.mu.trees.clone(), bytes: s.mu.bytes,
		seen: s.mu.rv, from: s.mu.complete, to: rv, received: received,
	}
	s.mu.Unlock()
	if rv < c.seen {
		return 0, fmt.Errorf("a list at resourceVersion %d after %d: %w", rv, c.seen, ErrBackwards)
	}
	changes, err := c.differences(elements, deleted)
	if err != nil {
		return 0, err
	}
	c.apply(changes)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.trees, s.mu.bytes = c.trees, c.bytes
	s.mu.cloned, s.published = false, nil
	for _, e := range c.events {
		s.mu.window.push(e)
	}
	s.mu.rv, s.mu.complete, s.mu.closed = rv, rv, rv
	s.latest.Store(nil)
	s.newest.Store(nil)
	s.mu.interruptions = slices.DeleteFunc(s.mu.interruptions, func(i interruption) bool {
		past := i.to <= s.mu.window.dropped
		if past {
			s.mu.forgotten = max(s.mu.forgotten, i.to)
		}
		return past
	})
	s.mu.interruptions = append(s.mu.interruptions, interruption{from: c.from, to: rv})
	s.mu.floors.carried(rv)
	s.trimLocked(new(Applied))
	return len(c.events), nil
}

// carried is the new state that Carry builds from a list.
type carried struct {
	config *Config
	trees  trees
	bytes  int64
	events []*Event
	// seen is the highest resourceVersion that the source had reported, from
	// the one that the state showed, to that of the list.
	seen, from, to uint64
	received       int64
}

// differences returns the changes that lead from the trees to elements, in the
// order of resourceVersions. Deletions come last, because only the latest
// resourceVersion that they can have is known.
func (c *carried) differences(elements []*Element, deleted func(*Element) *Element) ([]Change, error) {
	var changes []Change
	listed := make(map[string]struct{}, len(elements))
	for _, e := range elements {
		if _, twice := listed[e.Key]; twice {
			return nil, fmt.Errorf("%q is listed twice: %w", e.Key, ErrGap)
		}
		listed[e.Key] = struct{}{}
		found, exists := c.trees.primary.Get(item{key: e.Key})
		change := Change{Type: Modified, Element: e, RV: e.RV}
		switch {
		case !exists:
			change.Type = Added
		case found.element.RV == e.RV:
			continue
		}
		if e.RV <= c.from || e.RV > c.to {
			return nil, gap(change, fmt.Sprintf("the list is at %d, the state is at %d", c.to, c.from))
		}
		changes = append(changes, change)
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.RV, b.RV) })
	c.trees.primary.Ascend(func(i item) bool {
		if _, stays := listed[i.key]; !stays {
			changes = append(changes, Change{Type: Deleted, Element: deleted(i.element), RV: c.to})
		}
		return true
	})
	if len(changes) > 0 && c.to == c.from {
		return nil, fmt.Errorf("a list differs from the state at the same resourceVersion %d: %w", c.to, ErrGap)
	}
	return changes, nil
}

// apply turns the changes into events, and applies them to the trees.
func (c *carried) apply(changes []Change) {
	scratch := make([]string, 0, valuesRoom)
	c.events = make([]*Event, 0, len(changes))
	for _, change := range changes {
		found, _ := c.trees.primary.Get(item{key: change.Element.Key})
		e := &Event{
			RV: change.RV, Type: change.Type, Element: change.Element, Previous: found.element,
			Received: c.received,
		}
		e.Element.seal()
		c.bytes += c.trees.outcome(c.config.Indexes, e, scratch)
		c.events = append(c.events, e)
	}
}

// HideBefore hides the resourceVersions below rv, because the state may have missed
// events: what a client has at one of them need not be what the state had there.
// The versions can be neither read nor continued from any more: ErrExpired. Called
// before Carry with the resourceVersion of its list, HideBefore leaves to it only
// the watchers that were told the state's own content.
func (s *State) HideBefore(rv uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.interruptions = append(s.mu.interruptions, interruption{to: rv})
}

// Skipped reports whether rv lies in a part of the history that a list has skipped
// (Carry), or that is hidden (HideBefore). Of versions before the last of these parts
// that the window has left behind, Skipped says that they are; 0 never is.
func (s *State) Skipped(rv uint64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.interruptedLocked(rv) || (rv > 0 && rv < s.mu.forgotten)
}

// interruptedLocked reports whether rv is in a part of the history that was not
// seen event by event.
func (s *State) interruptedLocked(rv uint64) bool {
	return slices.ContainsFunc(s.mu.interruptions, func(i interruption) bool { return i.hides(rv) })
}
