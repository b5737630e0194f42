// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
	"sync"
)

// overlayBatch is the number of events that At looks at before it checks whether done was
// closed. The state's lock is held for copying that many pointers.
const overlayBatch = 4096

// At returns the snapshot at rv. The error is ErrFuture above the state's resourceVersion,
// ErrCompacted for one that the source has compacted, and ErrExpired for one that is older
// than the window and has no kept snapshot.
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

// PinSnapshot keeps a snapshot that a continue token names, however far the window has
// moved on, as long as it is read at least once within Config.History; but not after its
// compaction, not after a Replace, and no more than eight snapshots.
func (s *State) PinSnapshot(snapshot *Snapshot) { snapshot.kept.pin(snapshot, s.now.Load()) }

// HasSnapshot reports whether At has the snapshot at rv, even if the window no longer
// has its events.
func (s *State) HasSnapshot(rv uint64) bool {
	s.mu.RLock()
	compacted, kept := s.mu.compacted, s.mu.kept
	s.mu.RUnlock()
	return rv >= compacted && kept.has(rv)
}

// makeVersion makes the snapshot at rv from the newest trees and the window. It repeats the
// checks of At under the lock: Replace may have been called since.
func (s *State) makeVersion(done <-chan struct{}, rv uint64) (*Snapshot, error) {
	s.mu.Lock()
	newest, next, complete, dropped := s.withTailLocked(), s.mu.window.after(rv), s.mu.complete, s.mu.window.dropped
	s.mu.Unlock()
	switch {
	case rv > complete:
		return nil, future(rv, complete)
	case rv < dropped:
		return nil, expired(rv, dropped)
	}
	return newest.earlier(rv, next, s.Since, done)
}

// earlier makes the version at rv of the newest snapshot; next is the position of the first
// event after rv. since reads the events in batches, so that the writer never waits for long.
func (s *Snapshot) earlier(rv uint64, next Position, since func(Position, []*Event) (int, uint64, error), done <-chan struct{}) (*Snapshot, error) {
	older := &overlay{}
	events := make([]*Event, min(overlayBatch, int(s.next-next)))
	for p := next; p < s.next; {
		select {
		case <-done:
			return nil, ErrStopped
		default:
		}
		n, _, err := since(p, events[:min(len(events), int(s.next-p))])
		if err != nil {
			return nil, err
		}
		older.add(events[:n], rv)
		p += Position(n)
	}
	slices.Sort(older.added)
	slices.Sort(older.deleted)
	older.elements = slices.Clip(older.elements)
	slices.SortFunc(older.elements, byKey)
	version := &Snapshot{rv: rv, next: next, base: s.base, older: older, kept: s.kept}
	version.checkRV()
	return version, nil
}

// add adds the next events above rv.
func (o *overlay) add(events []*Event, rv uint64) {
	for _, e := range events {
		switch e.Type {
		case Added:
			o.added = append(o.added, e.Element.Key)
			continue
		case Deleted:
			o.deleted = append(o.deleted, e.Element.Key)
		}
		if e.Previous.RV <= rv {
			o.elements = append(o.elements, e.Previous)
		}
	}
}

// maxKept bounds the kept snapshots of each kind: made by At, or given to PinSnapshot.
const maxKept = 8

// keptSnapshots keeps the snapshots of earlier versions, most recently used first, so that
// paging through a list at one resourceVersion makes it once.
type keptSnapshots struct {
	mu struct {
		sync.Mutex
		entries []*keptSnapshot
	}
}

type keptSnapshot struct {
	rv     uint64
	used   int64 // the caller's time at the last use
	pinned bool

	// made is closed once snapshot and err are set; nil if pinned.
	made     chan struct{}
	snapshot *Snapshot
	err      error
}

// get returns the snapshot at rv, and calls build, with no lock held, if there is none.
// Concurrent callers share one call of build, unless its caller gives up. done ends the wait
// of this caller.
func (k *keptSnapshots) get(rv uint64, now int64, done <-chan struct{}, build func() (*Snapshot, error)) (*Snapshot, error) {
	for {
		entry, mine := k.entry(rv, now)
		if mine {
			k.fill(entry, build)
			return entry.snapshot, entry.err
		}
		if !entry.pinned {
			select {
			case <-entry.made: // even if done is closed, too
			default:
				select {
				case <-entry.made:
				case <-done:
					return nil, ErrStopped
				}
			}
		}
		if entry.err != errAbandoned && entry.err != ErrStopped {
			return entry.snapshot, entry.err
		}
	}
}

// fill calls build and sets the entry's result. An entry whose build failed is removed.
func (k *keptSnapshots) fill(entry *keptSnapshot, build func() (*Snapshot, error)) {
	entry.err = errAbandoned // unless build returns
	defer func() {
		if entry.err != nil {
			k.drop(func(e *keptSnapshot) bool { return e == entry })
		}
		close(entry.made)
	}()
	entry.snapshot, entry.err = build()
}

// entry returns the entry for rv; mine is true for the one caller that must
// fill it.
func (k *keptSnapshots) entry(rv uint64, now int64) (entry *keptSnapshot, mine bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.mu.entries, func(e *keptSnapshot) bool { return e.rv == rv })
	if mine = i < 0; mine {
		entry = &keptSnapshot{rv: rv, made: make(chan struct{})}
	} else {
		entry = k.mu.entries[i]
	}
	entry.used = now
	k.putLocked(entry)
	return entry, mine
}

// pin keeps a snapshot that readers were given a continue token for.
func (k *keptSnapshots) pin(s *Snapshot, now int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// An entry that there is may be incomplete still, and fail.
	k.putLocked(&keptSnapshot{rv: s.rv, used: now, pinned: true, snapshot: s})
}

// putLocked puts the entry first, in place of the one at its resourceVersion, and removes
// the last of its kind beyond maxKept.
func (k *keptSnapshots) putLocked(entry *keptSnapshot) {
	k.mu.entries = slices.DeleteFunc(k.mu.entries, func(e *keptSnapshot) bool { return e.rv == entry.rv })
	k.mu.entries = slices.Insert(k.mu.entries, 0, entry)
	alike := 0
	for i, e := range k.mu.entries {
		if e.pinned != entry.pinned {
			continue
		}
		if alike++; alike > maxKept {
			k.mu.entries = slices.Delete(k.mu.entries, i, i+1)
			return
		}
	}
}

// has reports whether the snapshot at rv is kept.
func (k *keptSnapshots) has(rv uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.mu.entries, func(e *keptSnapshot) bool { return e.rv == rv })
}

func (k *keptSnapshots) drop(which func(*keptSnapshot) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.entries = slices.DeleteFunc(k.mu.entries, which)
}
