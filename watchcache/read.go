// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
)

// RV returns the resourceVersion that the state shows.
func (s *State) RV() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.rv
}

// Get returns the element with the key, nil if there is none, and the
// resourceVersion of the state it was read from. It reads the newest snapshot
// if there is one, and only else takes the writer's lock, to share it: making
// a snapshot for one element would cost the writer more.
func (s *State) Get(key string) (*Element, uint64) {
	if latest := s.latest.Load(); latest != nil {
		return latest.Get(key), latest.rv
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	found, _ := s.mu.trees.primary.Get(item{key: key})
	return found.element, s.mu.rv
}

// Latest returns the newest snapshot. It costs a clone of the trees' roots for
// the first caller after a change and a pointer for all others.
func (s *State) Latest() *Snapshot {
	if latest := s.latest.Load(); latest != nil {
		return latest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latestLocked()
}

func (s *State) latestLocked() *Snapshot {
	if latest := s.latest.Load(); latest != nil {
		return latest
	}
	snapshot := &Snapshot{rv: s.mu.rv, next: s.mu.window.next, indexes: s.config.Indexes}
	if s.mu.cloned {
		// Only the resourceVersion has moved on.
		snapshot.trees = s.last.trees
		snapshot.clone = s.last.clone
	} else {
		snapshot.trees = s.mu.trees.clone()
		snapshot.clone = newCloneLock()
	}
	s.mu.cloned, s.last = true, snapshot
	s.latest.Store(snapshot)
	return snapshot
}

// At returns the snapshot at rv. It fails with ErrFuture above the state's
// resourceVersion, with ErrCompacted below what the source has compacted, and
// with ErrExpired where the window does not reach.
func (s *State) At(rv uint64) (*Snapshot, error) {
	s.mu.RLock()
	current, compacted, dropped, exact := s.mu.rv, s.mu.compacted, s.mu.window.dropped, s.mu.exact
	s.mu.RUnlock()
	switch {
	case rv > current:
		return nil, future(rv, current)
	case rv < compacted:
		return nil, fmt.Errorf("resourceVersion %d, compacted up to %d: %w", rv, compacted, ErrCompacted)
	case rv == current:
		if latest := s.Latest(); latest.rv == rv {
			return latest, nil
		}
	case rv < dropped && !exact.has(rv):
		return nil, expired(rv, dropped)
	}
	return exact.get(rv, s.now.Load(), func() (*Snapshot, error) { return s.undoTo(rv) })
}

// undoTo makes the snapshot at rv from the latest one. It looks again at what
// is there: Replace may have come since At looked, and gone back below rv.
func (s *State) undoTo(rv uint64) (*Snapshot, error) {
	s.mu.Lock()
	w := &s.mu.window
	if rv > s.mu.rv {
		defer s.mu.Unlock()
		return nil, future(rv, s.mu.rv)
	}
	if rv < w.dropped || s.interruptedLocked(rv) {
		defer s.mu.Unlock()
		return nil, expired(rv, w.dropped)
	}
	latest := s.latestLocked()
	newer := make([]*Event, w.next-w.after(rv))
	w.copyFrom(w.after(rv), newer)
	s.mu.Unlock()

	snapshot := latest.undo(newer, rv)
	snapshot.checkRV()
	return snapshot, nil
}

// PositionAfter returns the position of the first event above rv, which is the
// position to come if there is none yet. It fails with ErrExpired if events
// after rv have left the window.
func (s *State) PositionAfter(rv uint64) (Position, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if rv < s.mu.window.dropped || s.interruptedLocked(rv) {
		return 0, expired(rv, s.mu.window.dropped)
	}
	return s.mu.window.after(rv), nil
}

// Since copies events from position p on into buf, which bounds their number.
// through is the resourceVersion up to which nothing is missing once these
// events are processed. It fails with ErrExpired if the event at p has left
// the window, or history was interrupted since p was given out, and with
// ErrFuture if p was never given out.
func (s *State) Since(p Position, buf []*Event) (n int, through uint64, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	if p < w.first {
		return 0, 0, fmt.Errorf("position %d is older than the oldest kept, %d: %w", p, w.first, ErrExpired)
	}
	if p > w.next {
		return 0, 0, fmt.Errorf("position %d, the next event is %d: %w", p, w.next, ErrFuture)
	}
	n = w.copyFrom(p, buf)
	through = s.mu.rv
	if after := p + Position(n); after < w.next {
		through = w.at(after).RV - 1
	}
	return n, through, nil
}

// Stats describes a State.
type Stats struct {
	// RV is the resourceVersion that the state shows, OldestRV the lowest one
	// that the window can be continued from.
	RV, OldestRV uint64
	// Objects and ObjectBytes are the elements and what they take, in bytes.
	Objects     int
	ObjectBytes int64
	// WindowEvents and WindowBytes are the events in the window and what it
	// keeps in memory beyond the current state, WindowCapacity its slots.
	WindowEvents   int
	WindowBytes    int64
	WindowCapacity int
	// Oldest and Next are the positions of the oldest kept event and of the
	// event to come.
	Oldest, Next Position
}

// Stats returns the state's sizes.
func (s *State) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	return Stats{
		RV: s.mu.rv, OldestRV: w.dropped,
		Objects: s.mu.trees.primary.Len(), ObjectBytes: s.mu.bytes,
		WindowEvents: w.len(), WindowBytes: w.bytes, WindowCapacity: len(w.ring),
		Oldest: w.first, Next: w.next,
	}
}

// Reach returns what decides which resourceVersions can be read: the state's
// own, the oldest that At can show, and the one below which the source has
// compacted.
func (s *State) Reach() (rv, oldest, compacted uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.rv, s.mu.window.dropped, s.mu.compacted
}
