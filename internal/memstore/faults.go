// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// request counts a request, waits at the gate of its kind if there is one, and
// fails if that was ordered.
func (s *Store) request(ctx context.Context, kind string) error {
	s.mu.Lock()
	s.mu.requests[kind]++
	gate := s.mu.gates[kind]
	s.changedLocked()
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.mu.fail[kind]
}

// Requests returns how many requests of each kind came: create, update,
// delete, get, list, watch, version, keyversions, progress.
func (s *Store) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.requests)
}

// AwaitRequests returns once n requests of the kind have come in all.
func (s *Store) AwaitRequests(ctx context.Context, kind string, n int) error {
	for {
		s.mu.Lock()
		have, changed := s.mu.requests[kind], s.mu.changed
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Fail makes all requests of the kind fail; nil: not any more.
func (s *Store) Fail(kind string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fail[kind] = err
}

// Gate makes requests of the kind wait until open is called.
func (s *Store) Gate(kind string) (open func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.mu.gates[kind] = gate
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.gates[kind] == gate {
			delete(s.mu.gates, kind)
			close(gate)
		}
	}
}

// Hold keeps events back until release is called.
func (s *Store) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.held = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.held = false
		s.changedLocked()
	}
}

// HoldRevision makes watches bring the first events of the revision rv only,
// and nothing after them, until release is called.
func (s *Store) HoldRevision(rv uint64, events int) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.unfinished, s.mu.parts = rv, events
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.unfinished = 0
		s.changedLocked()
	}
}

// EndRevisions sets whether a watch with ProgressNotify gets a bookmark after
// the last event of each revision, as from storage/etcd3. By default a watch does.
func (s *Store) EndRevisions(tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.silent = !tell
}

// BreakWatches ends all watches: with an ERROR event, or without if err is nil.
func (s *Store) BreakWatches(err *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watches {
		w.broken = &watch.Event{}
		if err != nil {
			status := err.Status()
			w.broken = &watch.Event{Type: watch.Error, Object: &status}
		}
	}
	s.changedLocked()
}

// Inject sends an event of the test's making on all watches, out of order with
// those that the store has.
func (s *Store) Inject(event watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watches {
		w.injected = append(w.injected, event)
	}
	s.changedLocked()
}

// SkipEvents makes all watches miss the changes so far that they have not
// seen, as a source that skips what it has compacted does.
func (s *Store) SkipEvents() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watches {
		w.next, w.parts = s.mu.rv+1, 0
	}
}

// Restore goes back to the state at rv, as a restored backup does: history
// after it is gone, and watches end.
func (s *Store) Restore(rv uint64) {
	s.mu.Lock()
	state := s.stateLocked(rv)
	s.mu.objects = state
	s.mu.rv = rv
	s.mu.log = slices.DeleteFunc(s.mu.log, func(c change) bool { return c.rv > rv })
	s.mu.Unlock()
	s.BreakWatches(nil)
}

// Watches returns how many watches are open.
func (s *Store) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.watches)
}

// Objects returns a copy of the current state by key.
func (s *Store) Objects() map[string]runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.objects)
}

// Corrupt makes every change from now on undeliverable until release is
// called: watches end with err when they come to one, and lists fail with it.
func (s *Store) Corrupt(err *apierrors.StatusError) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.corruptAfter, s.mu.corrupt = s.mu.rv, err
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.corrupt = nil
		s.changedLocked()
	}
}

// corruptLocked returns the error for something that includes changes up to rv.
func (s *Store) corruptLocked(rv uint64) *apierrors.StatusError {
	if s.mu.corrupt == nil || rv <= s.mu.corruptAfter {
		return nil
	}
	return s.mu.corrupt
}
