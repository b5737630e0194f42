// SPDX-License-Identifier: Apache-2.0

package watchcache

// A revision may carry several events, which come one by one. Until all have
// come, the state shows the revision before: a snapshot, a bookmark or a
// resourceVersion to resume from must not name a revision that is incomplete.

// advanceLocked records that a change at rv has come, before its element is
// set. All resourceVersions below rv are complete then.
func (s *State) advanceLocked(rv uint64, whole bool) {
	assert(rv >= s.mu.rv, "W1", "resourceVersion falls from %d to %d", s.mu.rv, rv)
	switch {
	case rv == s.mu.complete:
		// rv was taken for complete. A snapshot at rv does not have this change.
		s.latest.Store(nil)
		s.mu.kept.drop(func(k *keptSnapshot) bool { return k.rv == rv })
	case whole:
		s.completeLocked(rv)
	default:
		s.completeLocked(max(rv-1, s.mu.complete))
	}
	s.mu.rv = rv
	assert(s.mu.complete == rv || s.mu.complete == rv-1, "W2", "complete up to %d with a change at %d", s.mu.complete, rv)
}

// completeLocked makes rv the resourceVersion that the state shows; rv may be
// above all events.
func (s *State) completeLocked(rv uint64) {
	assert(rv >= s.mu.complete, "W1", "the complete resourceVersion falls from %d to %d", s.mu.complete, rv)
	if rv == s.mu.complete {
		return
	}
	if rv > s.mu.rv {
		s.mu.rv = rv
		s.newest.Store(nil)
	}
	s.mu.complete = rv
	s.latest.Store(nil)
}

// Unfinished returns the resourceVersion of the last change while more changes
// at this resourceVersion may come, and 0 when the state shows all changes.
func (s *State) Unfinished() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.mu.rv == s.mu.complete {
		return 0
	}
	return s.mu.rv
}

// appliedLocked reports whether a change that does not fit was applied before,
// at the last resourceVersion.
func (s *State) appliedLocked(c Change) bool {
	w := &s.mu.window
	for p := w.next; p > w.first; p-- {
		e := w.at(p - 1)
		if e.RV != c.RV {
			return false
		}
		if e.Type == c.Type && e.Element.Key == c.Element.Key {
			return true
		}
	}
	return false
}

// latestLocked returns the snapshot at complete if there is no tail, so that
// the snapshot needs no overlay. Otherwise it returns the newest snapshot and the
// position of the tail, from which the snapshot is made.
func (s *State) latestLocked() (latest, newest *Snapshot, tail Position) {
	if latest := s.latest.Load(); latest != nil {
		return latest, nil, 0
	}
	newest = s.newestLocked()
	if s.mu.complete == s.mu.rv {
		s.latest.Store(newest)
		return newest, nil, 0
	}
	return nil, newest, s.mu.window.after(s.mu.complete)
}

// newestLocked returns the snapshot of the trees as they are.
func (s *State) newestLocked() *Snapshot {
	if newest := s.newest.Load(); newest != nil {
		return newest
	}
	if !s.mu.cloned {
		s.published = &base{trees: s.mu.trees.clone(), mark: s.markLocked()}
		s.mu.cloned = true
	}
	// Without a clone only the resourceVersion has moved on.
	newest := &Snapshot{
		rv: s.mu.rv, next: s.mu.window.next, base: s.published, kept: s.mu.kept,
	}
	s.newest.Store(newest)
	return newest
}

// before makes the snapshot at complete, without the tail. No lock is held:
// the tail may be as long as a transaction of the source.
func (s *State) before(newest *Snapshot, tail Position, complete uint64) (*Snapshot, error) {
	older, err := s.overlay(newest, tail, complete, nil)
	if err != nil {
		return nil, err
	}
	snapshot := newest.under(older, complete, tail)
	s.mu.Lock()
	defer s.mu.Unlock()
	// An index that is added meanwhile must not be missed until the next change.
	if s.mu.complete == complete && s.mu.kept == newest.kept && len(s.mu.trees.indexes) == len(newest.base.trees.indexes) {
		s.latest.Store(snapshot)
	}
	return snapshot, nil
}
