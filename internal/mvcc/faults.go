// SPDX-License-Identifier: Apache-2.0

package mvcc

// The functions of this file are for package memstore only.

// Txn makes all writes at one resourceVersion, in this order, and returns it. Other than
// by Apply, objects are written as they are.
func Txn(s *Store, writes ...Write) uint64 {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.commit(true, writes...).rv
}

// Restore goes back to the state at rv, which must not be compacted, like a backup
// that is restored: later changes are gone. Watches end with 410.
func Restore(s *Store, rv uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.tree, s.mu.rv, s.mu.newest = s.undoneLocked(rv), rv, s.mu.oldest
	for next := s.mu.oldest.next; next != nil && next.after.rv <= rv; next = next.next {
		s.mu.newest = next
	}
	s.mu.newest.next = nil
	for w := range s.mu.watches {
		w.last = nil
	}
	s.wakeLocked()
}

// Skip has all watches miss the changes that they have not sent yet.
func Skip(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watches {
		w.rv, w.last = s.mu.rv, s.mu.newest
	}
}

// Wake has watches ask their Source again.
func Wake(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

// Changed returns a channel that is closed with the next change or by Wake.
func Changed(s *Store) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.changed
}

// Initial reports whether the state that the watch begins with is still to be sent.
func (w *Watcher) Initial() bool { return w.view != nil }

// Position returns the version that the watch has taken all changes up to, and the
// version of the next one, 0 if there is none.
func (w *Watcher) Position() (rv, next uint64) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.last == nil || w.nextLocked() == nil {
		return w.rv, 0
	}
	return w.rv, w.nextLocked().after.rv
}

// Asked reports whether a bookmark is requested, and takes that request.
func (w *Watcher) Asked() bool {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	asked := w.progress
	w.progress = false
	return asked
}
