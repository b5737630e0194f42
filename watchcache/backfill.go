// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"sort"
)

// Backfill puts changes in front of the window, so that readers go on from earlier
// versions: all changes of the source above from and up to at, in order. at is the oldest
// snapshot that the window allows. before has the element at from of each key whose first
// change is no addition. Call PinOldest before at is taken, so that the window does not
// move on meanwhile. received is the time of the events, as Event.Received.
//
// Backfill verifies the changes: key by key they must lead from the elements of before to
// those of at, and explain each element of at that is newer than from. The error is otherwise
// ErrGap, and the state as it was. The error is ErrExpired if at is not the oldest snapshot any more.
//
// Unlike the methods of the writer, Backfill may be called on any goroutine. The caller
// must not write to the elements any more.
func (s *State) Backfill(at *Snapshot, from uint64, changes []Change, before map[string]*Element, received int64) (Applied, error) {
	events, err := backfilled(at, from, changes, before, received)
	if err != nil {
		return Applied{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.mu.window
	switch room := int(w.first - w.lowest); {
	case at.kept != s.mu.kept, at.next != w.first, w.dropped != at.rv:
		return Applied{}, fmt.Errorf("the window does not begin at resourceVersion %d any more: %w", at.rv, ErrExpired)
	case len(events) > room:
		return Applied{}, fmt.Errorf("%d events before the window, which has room for %d: %w", len(events), room, ErrExpired)
	case from <= w.listed && w.first > w.begun &&
		len(events)-sort.Search(len(events), func(i int) bool { return events[i].RV > w.listed }) != int(w.first-w.begun):
		// An event that has left the window must come back at its old position.
		return Applied{}, fmt.Errorf("since resourceVersion %d the source has other events than have left the window: %w", w.listed, ErrGap)
	}
	w.prepend(events, from)
	s.mu.floors.base = min(s.mu.floors.base, from)
	return s.trimLocked(), nil
}

// PinOldest keeps all events in the window, up to the ceiling, until unpin is called once.
func (s *State) PinOldest() (unpin func()) {
	s.pinned.Add(1)
	return func() { s.pinned.Add(-1) }
}

// backfilled makes the events of changes that lead from before to at, with the elements of
// at where it has them.
func backfilled(at *Snapshot, from uint64, changes []Change, before map[string]*Element, received int64) ([]*Event, error) {
	if from >= at.rv {
		return nil, fmt.Errorf("a history from resourceVersion %d to %d: %w", from, at.rv, ErrGap)
	}
	events := make([]*Event, 0, len(changes))
	last := make(map[string]*Event)
	rv := from
	for _, c := range changes {
		key := c.Element.Key
		previous, e := before[key], last[key]
		switch {
		case c.RV < rv || c.RV <= from || c.RV > at.rv:
			return nil, gap(c, fmt.Sprintf("the history is from %d to %d, and has come to %d", from, at.rv, rv))
		case e != nil && e.RV >= c.RV:
			return nil, gap(c, "the key was changed before, at the same resourceVersion")
		case e != nil:
			previous = e.after()
		case previous != nil && previous.RV > from:
			return nil, gap(c, fmt.Sprintf("the element before the history is at resourceVersion %d", previous.RV))
		}
		if err := c.fits(previous); err != nil {
			return nil, err
		}
		if previous != nil && at.Get(key) != c.Element {
			c.Element.share(previous)
		}
		rv = c.RV
		e = &Event{RV: rv, Type: c.Type, Element: c.Element, Previous: previous, Received: received}
		events, last[key] = append(events, e), e
	}
	if err := leadTo(at, from, last); err != nil {
		return nil, err
	}
	for _, e := range events {
		if e.Previous != nil {
			e.Previous.seal() // at has no replaced elements
		}
		if e != last[e.Element.Key] || e.Type == Deleted {
			e.Element.seal()
		}
	}
	return events, nil
}

// leadTo compares the last events of keys with a snapshot, and makes them use the
// snapshot's elements.
func leadTo(at *Snapshot, from uint64, last map[string]*Event) (err error) {
	at.Range("", "", func(element *Element) bool {
		e := last[element.Key]
		switch {
		case e == nil && element.RV <= from:
		case e == nil || e.Type == Deleted || e.RV != element.RV:
			err = fmt.Errorf("%q is at resourceVersion %d, which the history lacks: %w", element.Key, element.RV, ErrGap)
		default:
			e.Element = element
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	for key, e := range last {
		if e.Type != Deleted && at.Get(key) != e.Element {
			return fmt.Errorf("%q, which is there at the end of the history, is not there at resourceVersion %d: %w", key, at.rv, ErrGap)
		}
	}
	return nil
}
