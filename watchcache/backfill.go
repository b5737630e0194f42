// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"sort"
)

// Backfill puts changes in front of the window, so that readers can continue from earlier
// versions. changes are all changes of the source above from and up to oldest.RV(), in order.
// oldest is the oldest snapshot allowed by the window; call PinOldest before At returns it, so
// that the window does not move on. before has the element at from of each key whose first change
// is not Added. received is the time of the events; see Event.Received.
//
// Backfill verifies the changes: for each key they must lead from its element in before to the one
// in oldest, and explain each element of oldest newer than from. Otherwise it returns ErrGap. It
// returns ErrExpired if the window no longer starts at oldest, or has no room. The state is
// unchanged after an error.
//
// Backfill may be called from any goroutine. The caller must not write to the elements after the
// call.
func (s *State) Backfill(
	oldest *Snapshot, from uint64, changes []Change, before map[string]*Element, received int64,
) (Applied, error) {
	events, err := backfillEvents(oldest, from, changes, before, received)
	if err != nil {
		return Applied{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.mu.window
	room := int(w.first - w.minPos)
	evicted := int(w.first) - int(w.resetPos) // since the last reset
	switch {
	case oldest.kept != s.mu.kept, oldest.next != w.first, w.evictedRV != oldest.rv:
		return Applied{}, fmt.Errorf("the window no longer starts at resourceVersion %d: %w", oldest.rv, ErrExpired)
	case len(events) > room:
		return Applied{}, fmt.Errorf("%d events exceed the room of %d before the window: %w", len(events), room, ErrExpired)
	case from <= w.resetRV && evicted > 0 && countAbove(events, w.resetRV) != evicted:
		// An evicted event must return to its previous position.
		return Applied{}, fmt.Errorf("the history above resourceVersion %d has other events than the window evicted: %w", w.resetRV, ErrGap)
	}
	w.prepend(events, from)
	s.mu.marks.sinceRV = min(s.mu.marks.sinceRV, from)
	return s.trimLocked(), nil
}

// countAbove returns the number of events above rv; events is in order.
func countAbove(events []*Event, rv uint64) int {
	return len(events) - sort.Search(len(events), func(i int) bool { return events[i].RV > rv })
}

// PinOldest keeps all events in the window, up to Config.CeilingBytes, until unpin is called. Call
// unpin exactly once.
func (s *State) PinOldest() (unpin func()) {
	s.pinned.Add(1)
	return func() { s.pinned.Add(-1) }
}

// backfilled returns the events of changes that lead from before to oldest. They share the
// elements of oldest.
func backfillEvents(
	oldest *Snapshot, from uint64, changes []Change, before map[string]*Element, received int64,
) ([]*Event, error) {
	if from >= oldest.rv {
		return nil, fmt.Errorf("the history begins at resourceVersion %d, not below %d: %w", from, oldest.rv, ErrGap)
	}
	events := make([]*Event, 0, len(changes))
	last := make(map[string]*Event)
	rv := from
	for _, c := range changes {
		key := c.Element.Key
		e := last[key]
		previous := before[key]
		switch {
		case c.RV < rv || c.RV <= from || c.RV > oldest.rv:
			return nil, gap(c, fmt.Sprintf("the history is from %d to %d, its last change was at %d", from, oldest.rv, rv))
		case e != nil && e.RV >= c.RV:
			return nil, gap(c, "it is the second change of the key at this resourceVersion")
		case e != nil:
			previous = e.after()
		case previous != nil && previous.RV > from:
			return nil, gap(c, fmt.Sprintf("the element before the history is at resourceVersion %d", previous.RV))
		}
		if err := c.fits(previous); err != nil {
			return nil, err
		}
		if previous != nil && oldest.Get(key) != c.Element {
			c.Element.share(previous)
		}
		rv = c.RV
		e = &Event{RV: rv, Type: c.Type, Element: c.Element, Previous: previous, Received: received}
		events = append(events, e)
		last[key] = e
	}
	if err := leadTo(oldest, from, last); err != nil {
		return nil, err
	}
	for _, e := range events {
		if e.Previous != nil {
			e.Previous.seal() // oldest has no replaced elements
		}
		if e != last[e.Element.Key] || e.Type == Deleted {
			e.Element.seal()
		}
	}
	return events, nil
}

// leadTo verifies that the last events of all keys lead to the elements of oldest, and makes the
// events share those elements.
func leadTo(oldest *Snapshot, from uint64, last map[string]*Event) (err error) {
	oldest.Range("", "", func(element *Element) bool {
		e := last[element.Key]
		switch {
		case e == nil && element.RV <= from:
		case e == nil || e.Type == Deleted || e.RV != element.RV:
			err = fmt.Errorf("the history lacks the change of %q at resourceVersion %d: %w", element.Key, element.RV, ErrGap)
		default:
			e.Element = element
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	for key, e := range last {
		if e.Type != Deleted && oldest.Get(key) != e.Element {
			return fmt.Errorf("%q exists at the end of the history, but not at resourceVersion %d: %w", key, oldest.rv, ErrGap)
		}
	}
	return nil
}
