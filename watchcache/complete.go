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
		s.withTail.Store(nil)
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

// withTailLocked returns the snapshot of the trees as they are.
func (s *State) withTailLocked() *Snapshot {
	if newest := s.withTail.Load(); newest != nil {
		return newest
	}
	if s.published == nil {
		mark := Mark{Position: s.mu.window.next, bytes: s.mu.bytes, objects: s.mu.trees.primary.length, superseded: s.mu.window.superseded}
		s.published = &base{trees: s.mu.trees.clone(), mark: mark}
	}
	// Without a clone only the resourceVersion has moved on.
	newest := &Snapshot{
		rv: s.mu.rv, next: s.mu.window.next, base: s.published, kept: s.mu.kept,
	}
	s.withTail.Store(newest)
	return newest
}
