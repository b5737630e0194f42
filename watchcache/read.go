// SPDX-License-Identifier: Apache-2.0

package watchcache

import "fmt"

// RV returns the resourceVersion shown by the state.
func (s *State) RV() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.complete
}

// Get returns the element with the key, nil if there is none, and the resourceVersion it was read
// at. That may be above RV, because a source changes a key at most once per resourceVersion, so a single
// object is always complete. Get takes no snapshot, because a snapshot costs the writer more than
// a read lock.
func (s *State) Get(key string) (*Element, uint64) {
	if newest := s.latestIncomplete.Load(); newest != nil {
		return newest.Get(key), newest.rv
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.trees.primary.get(0, key), s.mu.rv
}

// Latest returns the newest snapshot of a complete resourceVersion. The first call after a change
// clones the roots of the trees; other calls load a pointer.
func (s *State) Latest() *Snapshot {
	if latest := s.latest.Load(); latest != nil {
		return latest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := s.latest.Load()
	if latest == nil {
		latest = s.latestIncompleteLocked()
		if s.mu.complete < s.mu.rv {
			// earlier can't fail, because the tail leaves the window only after a later resourceVersion is
			// complete.
			latest, _ = latest.earlier(s.mu.complete, s.mu.window.after(s.mu.complete), s.sinceLocked, nil)
		}
		s.latest.Store(latest)
	}
	return latest
}

// latestIncompleteLocked returns the snapshot of the trees including the tail.
func (s *State) latestIncompleteLocked() *Snapshot {
	if newest := s.latestIncomplete.Load(); newest != nil {
		return newest
	}
	if s.published == nil { // otherwise only the resourceVersion has advanced
		s.published = &base{trees: s.mu.trees.clone(), mark: Mark{
			Position: s.mu.window.next, bytes: s.mu.bytes, objects: s.mu.trees.primary.length, superseded: s.mu.window.superseded,
		}}
	}
	newest := &Snapshot{rv: s.mu.rv, next: s.mu.window.next, base: s.published, kept: s.mu.kept}
	s.latestIncomplete.Store(newest)
	return newest
}

// Since copies events from position p on to buf, and returns their number. through is the last
// complete resourceVersion once the caller has processed these events; the last of them may be
// above it. Since returns ErrExpired if the event at p has left the window or p is from before the
// last Replace, and ErrFuture if p is above the position of the next event.
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
		return 0, 0, fmt.Errorf("position %d is above that of the next event, %d: %w", p, w.next, ErrFuture)
	}
	n = min(len(buf), int(w.next-p))
	for i := range n {
		buf[i] = w.get(p + Position(i))
	}
	if p += Position(n); p < w.next {
		return n, w.get(p).RV - 1, nil
	}
	return n, s.mu.complete, nil
}

// Pick copies the events at positions to buf. Positions must ascend, come from Since, and not be
// below from. Pick returns ErrExpired if the event at from has left the window, or from is from
// before the last Replace.
func (s *State) Pick(from Position, positions []Position, buf []*Event) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.mu.window.check(from); err != nil {
		return err
	}
	for i, p := range positions {
		buf[i] = s.mu.window.get(p)
	}
	return nil
}

// Stats describes the size and the range of a State.
type Stats struct {
	// RV is the resourceVersion shown by the state, and OldestRV the lowest one from which a watch
	// can continue.
	RV, OldestRV uint64
	// Objects is the number of elements, and ObjectBytes their memory in bytes.
	Objects     int
	ObjectBytes int64
	// WindowEvents is the number of events in the window, WindowBytes its memory beyond the
	// current state, and WindowCapacity the number of slots in its ring.
	WindowEvents   int
	WindowBytes    int64
	WindowCapacity int
	// Since is the time of the last evicted event, or of the last Replace, in the unit of
	// Event.Received.
	Since int64
	// IndexBytes estimates the memory of the trees in bytes, without keys and values.
	IndexBytes int64
	// Superseded is the total size of all elements that have left the state since its creation,
	// in bytes.
	Superseded int64
	// FloorValues is the number of remembered values of evicted events, and FloorBytes their
	// estimated memory in bytes.
	FloorValues int
	FloorBytes  int64
	// Start is the position of the first event since the last Replace, Oldest that of the oldest
	// event in the window, and Next that of the next event.
	Start, Oldest, Next Position
}

// Stats returns the size and the range of the state.
func (s *State) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	w := &s.mu.window
	values, floorBytes := s.mu.marks.count()
	return Stats{
		FloorValues: values, FloorBytes: floorBytes,
		RV: s.mu.complete, OldestRV: w.evictedRV,
		Objects: s.mu.trees.primary.length, ObjectBytes: s.mu.bytes,
		WindowEvents: w.size(), WindowBytes: w.bytes, WindowCapacity: len(w.ring), Superseded: w.superseded,
		Since: w.evictedAt, IndexBytes: s.mu.trees.bytes(),
		Start: w.start, Oldest: w.first, Next: w.next,
	}
}

// Reach returns the bounds of the readable resourceVersions, i.e. the state's own, the oldest one that
// At can reconstruct, and the one below which the source is compacted.
func (s *State) Reach() (rv, oldest, compacted uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.boundsLocked()
}

func (s *State) boundsLocked() (rv, oldest, compacted uint64) {
	return s.mu.complete, s.mu.window.evictedRV, s.mu.compacted
}
