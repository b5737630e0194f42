// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
)

// overlayBatch is the number of events that At looks at, or of items that it
// sorts, before it checks whether done was closed. The state's lock is held for
// copying that many pointers.
const overlayBatch = 4096

// At returns the snapshot at rv. The error is ErrFuture for a resourceVersion
// above the state's, ErrCompacted for one that the source has compacted, and
// ErrExpired for one that is older than the window and of which no snapshot is
// kept.
func (s *State) At(rv uint64) (*Snapshot, error) { return s.AtUntil(nil, rv) }

// AtUntil is At for a caller that may give up: soon after done is closed,
// AtUntil returns ErrStopped.
func (s *State) AtUntil(done <-chan struct{}, rv uint64) (*Snapshot, error) {
	s.mu.RLock()
	current, compacted, dropped, kept := s.mu.complete, s.mu.compacted, s.mu.window.dropped, s.mu.kept
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
	case rv < dropped && !kept.has(rv):
		return nil, expired(rv, dropped)
	}
	return kept.get(rv, s.now.Load(), done, func() (*Snapshot, error) { return s.makeVersion(done, rv) })
}

// Keep keeps the snapshot for At, however far the window has moved on, as long
// as it is read at least once within Config.History; but not after the source
// has compacted its resourceVersion, not after a Replace, and no more than
// eight snapshots. Callers use Keep for a snapshot that a continue token names.
func (s *State) Keep(snapshot *Snapshot) { snapshot.kept.promise(snapshot, s.now.Load()) }

// Kept reports whether At has the snapshot at rv, even if the window no longer
// has its events.
func (s *State) Kept(rv uint64) bool {
	s.mu.RLock()
	compacted, kept := s.mu.compacted, s.mu.kept
	s.mu.RUnlock()
	return rv >= compacted && kept.has(rv)
}

// makeVersion makes the snapshot at rv from the newest trees and the window.
// The checks of At are repeated under the lock: Replace may have been called
// since, with a resourceVersion below rv.
func (s *State) makeVersion(done <-chan struct{}, rv uint64) (*Snapshot, error) {
	s.mu.Lock()
	w := &s.mu.window
	if rv > s.mu.complete {
		defer s.mu.Unlock()
		return nil, future(rv, s.mu.complete)
	}
	if rv < w.dropped || s.interruptedLocked(rv) {
		defer s.mu.Unlock()
		return nil, expired(rv, w.dropped)
	}
	newest := s.newestLocked()
	next := w.after(rv)
	s.mu.Unlock()

	older, err := s.overlay(newest, next, rv, done)
	if err != nil {
		return nil, err
	}
	return newest.under(older, rv, next), nil
}

// under returns the version at rv that the overlay makes of s.
func (s *Snapshot) under(older *overlay, rv uint64, next Position) *Snapshot {
	snapshot := &Snapshot{rv: rv, next: next, indexes: s.indexes, base: s.base, older: older, kept: s.kept}
	snapshot.checkRV()
	return snapshot
}

// overlay returns the overlay that turns newest into the version at rv; next is
// the position of the first event after rv. The events are read in batches, so
// that the writer never waits for long. If one of them leaves the window
// meanwhile, the version has expired.
func (s *State) overlay(newest *Snapshot, next Position, rv uint64, done <-chan struct{}) (*overlay, error) {
	stopped := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	older := &overlay{length: newest.Len()}
	events := make([]*Event, min(overlayBatch, int(newest.next-next)))
	for next < newest.next {
		if stopped() {
			return nil, ErrStopped
		}
		n, _, err := s.Since(next, events[:min(len(events), int(newest.next-next))])
		if err != nil {
			return nil, err
		}
		older.add(events[:n], rv)
		next += Position(n)
	}
	var ok bool
	if older.items, ok = sortItems(slices.Clip(older.items), stopped); !ok {
		return nil, ErrStopped
	}
	return older, nil
}

// add adds the next events above rv.
func (o *overlay) add(events []*Event, rv uint64) {
	for _, e := range events {
		switch e.Type {
		case Added:
			o.length--
			continue
		case Deleted:
			o.length++
		}
		if e.Previous.RV <= rv {
			o.items = append(o.items, item{key: e.Previous.Key, element: e.Previous})
		}
	}
}
