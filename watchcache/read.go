// SPDX-License-Identifier: Apache-2.0

package watchcache

import "fmt"

// RV returns the resourceVersion that the state shows.
func (s *State) RV() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.complete
}

// Get returns the element with the key, nil if there is none, and the resourceVersion of
// the state it was read from. This may be above RV: a source changes a key only once at a
// resourceVersion, so one object is always complete. Get makes no snapshot, which would
// cost the writer more than a lock for reading.
func (s *State) Get(key string) (*Element, uint64) {
	if newest := s.withTail.Load(); newest != nil {
		return newest.Get(key), newest.rv
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.trees.primary.get(0, key), s.mu.rv
}

// Latest returns the newest snapshot of a complete resourceVersion. The first
// call after a change clones the trees' roots; all others load a pointer.
func (s *State) Latest() *Snapshot {
	if latest := s.latest.Load(); latest != nil {
		return latest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := s.latest.Load()
	if latest == nil {
		latest = s.withTailLocked()
		if complete := s.mu.complete; complete < s.mu.rv {
			// No error: the tail leaves the window only once a later resourceVersion is complete.
			latest, _ = latest.earlier(complete, s.mu.window.after(complete), s.sinceLocked, nil)
		}
		s.latest.Store(latest)
	}
	return latest
}

// Since copies events from position p on into buf, and returns their number. through is
// the last resourceVersion that is complete once these events are processed; the last
// events may be above it. The error is ErrExpired if the event at p
// has left the window, or Replace was called since p was given out, and ErrFuture if p was
// never given out.
func (s *State) Since(p Position, buf []*Event) (n int, through uint64, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sinceLocked(p, buf)
}

func (s *State) sinceLocked(p Position, buf []*Event) (n int, through uint64, err error) {
	w := &s.mu.window
	if err := w.check(p); err != nil {
		return 0, 0, err
	}
	if p > w.next {
		return 0, 0, fmt.Errorf("position %d, the next event is %d: %w", p, w.next, ErrFuture)
	}
	n = min(len(buf), int(w.next-p))
	for i := range n {
		buf[i] = w.at(p + Position(i))
	}
	through = s.mu.complete
	if after := p + Position(n); after < w.next {
		through = w.at(after).RV - 1
	}
	return n, through, nil
}

// Pick copies the events at some positions, which ascend and were all given out by
// Since, into buf. The error is ErrExpired if the event at from, which is not above
// them, has left the window, or Replace was called since.
func (s *State) Pick(from Position, positions []Position, buf []*Event) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.mu.window.check(from); err != nil {
		return err
	}
	for i, p := range positions {
		buf[i] = s.mu.window.at(p)
	}
	return nil
}

// Stats are the sizes and the range of a State.
type Stats struct {
	// RV is the resourceVersion that the state shows, OldestRV the lowest one from
	// which a watch can continue.
	RV, OldestRV uint64
	// Objects and ObjectBytes are the number of elements and their memory in
	// bytes.
	Objects     int
	ObjectBytes int64
	// WindowEvents is the number of events in the window, WindowBytes its memory beyond the
	// current state, and WindowCapacity the number of slots in its ring.
	WindowEvents   int
	WindowBytes    int64
	WindowCapacity int
	// Since is the time, as Event.Received, of the last event that has left the window, or
	// of the last Replace.
	Since int64
	// IndexBytes estimates the trees of keys and of index values, without the strings.
	IndexBytes int64
	// Superseded is the sum, in bytes, of all elements that have ever left the state.
	Superseded int64
	// FloorValues is how many values the floors remember, and FloorBytes an estimate.
	FloorValues int
	FloorBytes  int64
	// Oldest and Next are the positions of the oldest kept event and of the next
	// event to come, Start that of the first one since the last Replace.
	Start, Oldest, Next Position
}

// Stats returns the state's sizes.
func (s *State) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	values, floorBytes := s.mu.floors.count()
	return Stats{
		FloorValues: values, FloorBytes: floorBytes,
		RV: s.mu.complete, OldestRV: w.dropped,
		Objects: s.mu.trees.primary.length, ObjectBytes: s.mu.bytes,
		WindowEvents: w.len(), WindowBytes: w.bytes, WindowCapacity: len(w.ring), Superseded: w.superseded,
		Since: w.since, IndexBytes: s.mu.trees.bytes(),
		Start: w.start, Oldest: w.first, Next: w.next,
	}
}

// Reach returns the bounds of the resourceVersions that can be read: the
// state's own, the oldest one that At can make, and the one below which the
// source has compacted.
func (s *State) Reach() (rv, oldest, compacted uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.complete, s.mu.window.dropped, s.mu.compacted
}
