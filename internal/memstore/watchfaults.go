// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// Hang is how a watch hangs, as one does that an unresponsive member of a
// cluster serves: it brings no event any more, and does not end.
type Hang struct {
	// Stale: progress requests are answered, with the version that the watch had
	// reached when it began to hang, as a member does that is cut off from its
	// peers. Without it they are not answered.
	Stale bool
	// Next is how many of the watches that are opened from now on hang, too.
	Next int
	// Stubborn: the watches do not end when they are stopped either, until
	// release is called.
	Stubborn bool
}

// HangWatches makes the open watches hang until release is called.
func (s *Store) HangWatches(how Hang) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hang := &hanging{Hang: how, released: make(chan struct{})}
	for w := range s.mu.watches {
		w.hang = hang
	}
	s.mu.hang = hang
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for w := range s.mu.watches {
			w.hang = nil
		}
		if s.mu.hang == hang {
			s.mu.hang = nil
		}
		close(hang.released)
		s.changedLocked()
	}
}

// hanging is a Hang that was ordered. Next counts down, guarded by Store.mu.
type hanging struct {
	Hang
	released chan struct{}
}

// EndWatches makes all watches end with err, those that are open and those that
// are opened, until release is called.
func (s *Store) EndWatches(err *apierrors.StatusError) (release func()) {
	s.BreakWatches(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ending = err
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.ending = nil
	}
}

// faultLocked applies the faults that were ordered to a watch that is being opened.
func (w *storageWatch) faultLocked() {
	s := w.store
	if s.mu.ending != nil {
		status := s.mu.ending.Status()
		w.broken = &watch.Event{Type: watch.Error, Object: &status}
	}
	if s.mu.hang != nil && s.mu.hang.Next > 0 {
		s.mu.hang.Next--
		w.hang = s.mu.hang
	}
}

// hungLocked returns what a watch that hangs sends.
func (w *storageWatch) hungLocked() []watch.Event {
	progress := w.progress
	w.progress = false
	if !progress || !w.hang.Stale {
		return nil
	}
	return []watch.Event{w.store.bookmark(w.next - 1)}
}

// awaitRelease returns when a stubborn watch may end.
func (w *storageWatch) awaitRelease() {
	w.store.mu.Lock()
	hang := w.hang
	w.store.mu.Unlock()
	if hang != nil && hang.Stubborn {
		<-hang.released
	}
}
