// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
)

// overlayBatch is the number of events AtUntil reads between checks of done. It holds the state's
// lock while copying that many pointers.
const overlayBatch = 4096

// At returns the snapshot at rv. It returns ErrFuture for a resourceVersion above the state's,
// ErrCompacted for one the source has compacted, and ErrExpired for one older than the window
// without a kept snapshot.
func (s *State) At(rv uint64) (*Snapshot, error) { return s.AtUntil(nil, rv) }

// AtUntil is At, but returns ErrStopped soon after done is closed.
func (s *State) AtUntil(done <-chan struct{}, rv uint64) (*Snapshot, error) {
	s.mu.RLock()
	current, oldest, compacted := s.boundsLocked()
	kept := s.mu.kept
	s.mu.RUnlock()
	switch {
	case rv > current:
		return nil, future(rv, current)
	case rv < compacted:
		return nil, fmt.Errorf("resourceVersion %d is below %d, up to which the source is compacted: %w", rv, compacted, ErrCompacted)
	case rv == current:
		if latest := s.Latest(); latest.rv == rv {
			return latest, nil
		}
	case rv < oldest && !kept.has(rv):
		return nil, expired(rv, oldest)
	}
	return kept.get(rv, s.now.Load(), done, func() (*Snapshot, error) { return s.buildVersion(done, rv) })
}

// PinSnapshot keeps a snapshot that a continue token refers to, even after its events have left
// the window. It is dropped after Config.History without a read, after its compaction, after
// Replace, and if eight others were used since.
func (s *State) PinSnapshot(snapshot *Snapshot) { snapshot.kept.pin(snapshot, s.now.Load()) }

// HasSnapshot reports whether the snapshot at rv is kept, even if its events have left the window.
func (s *State) HasSnapshot(rv uint64) bool {
	s.mu.RLock()
	compacted, kept := s.mu.compacted, s.mu.kept
	s.mu.RUnlock()
	return rv >= compacted && kept.has(rv)
}

// buildVersion builds the snapshot at rv from the newest trees and the window. It repeats the
// checks of AtUntil under the lock, because Replace may have been called since.
func (s *State) buildVersion(done <-chan struct{}, rv uint64) (*Snapshot, error) {
	s.mu.Lock()
	newest := s.latestIncompleteLocked()
	next := s.mu.window.after(rv)
	complete, oldest, _ := s.boundsLocked()
	s.mu.Unlock()
	switch {
	case rv > complete:
		return nil, future(rv, complete)
	case rv < oldest:
		return nil, expired(rv, oldest)
	}
	return newest.earlier(rv, next, s.Since, done)
}

// eventReader is State.Since, or State.sinceLocked for a caller that holds the lock.
type eventReader func(Position, []*Event) (n int, through uint64, err error)

// earlier builds the version of the snapshot at rv. next is the position of the first event after
// rv. since reads the events, in batches so that the writer never waits for long.
func (s *Snapshot) earlier(rv uint64, next Position, since eventReader, done <-chan struct{}) (*Snapshot, error) {
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

// overlay reconstructs an older version from newer trees, without a write to any tree. The
// elements at rv were
//
//   - the elements of the trees with an RV at or below rv: they have not changed since, and
//   - the Previous of each event above rv, if its RV is at or below rv. Only the first event of a key
//     above rv has such a Previous, because later events replace elements written after rv.
//
// No key is in both, so that a read can merge them in key order.
type overlay struct {
	elements []*Element // in key order
	// added and deleted are the sorted keys of ADDED and DELETED events above rv. In every range
	// of keys the number of elements at rv is the number in the trees, minus those in added, plus
	// those in deleted.
	added, deleted []string

	// byIndex has the elements under each value of an index, in key order. The first read by an
	// index computes them.
	byIndex struct {
		sync.Mutex
		byValue map[int]map[string][]*Element
	}
}

// elementsFrom returns the elements with keys not below key. elements is in key order.
func elementsFrom(elements []*Element, key string) []*Element {
	return elements[sort.Search(len(elements), func(i int) bool { return elements[i].Key >= key }):]
}

// countKeys returns the number of keys that begin with prefix and are not below from. keys is
// sorted.
func countKeys(keys []string, prefix, from string) int {
	keys = keys[sort.SearchStrings(keys, max(prefix, from)):]
	return sort.Search(len(keys), func(i int) bool { return !strings.HasPrefix(keys[i], prefix) })
}

// indexed returns the overlay's elements under value in the i-th index, and all of them if i is
// -1.
func (o *overlay) indexed(indexes []Index, i int, value string) []*Element {
	if i < 0 {
		return o.elements
	}
	o.byIndex.Lock()
	defer o.byIndex.Unlock()
	byValue, ok := o.byIndex.byValue[i]
	if ok {
		return byValue[value]
	}
	byValue = make(map[string][]*Element)
	scratch := make([]string, 0, valuesRoom)
	for _, e := range o.elements {
		for _, v := range indexes[i].Values(e, scratch[:0]) {
			under := byValue[v]
			if len(under) == 0 || under[len(under)-1] != e { // Values may append a value twice
				byValue[v] = append(under, e)
			}
		}
	}
	if o.byIndex.byValue == nil {
		o.byIndex.byValue = make(map[int]map[string][]*Element)
	}
	o.byIndex.byValue[i] = byValue
	return byValue[value]
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

// maxKept is the maximum number of kept snapshots of each kind: built by At, or pinned.
const maxKept = 8

// keptSnapshots caches snapshots of earlier versions, most recently used first, so that paging
// through a list at one resourceVersion builds it once.
type keptSnapshots struct {
	mu struct {
		sync.Mutex
		entries []*keptSnapshot
	}
}

type keptSnapshot struct {
	rv     uint64
	used   int64 // time of the last use, see Event.Received
	pinned bool

	// ready is closed once snapshot and err are set. It is nil if pinned is true.
	ready    chan struct{}
	snapshot *Snapshot
	err      error
}

// get returns the snapshot at rv, and calls build if there is none. No lock is held during build.
// Concurrent callers share a build; another caller takes over if the builder gives up or panics.
// Closing done ends only this call. golang.org/x/sync/singleflight can't be used here, because it neither
// hands a build over nor lets a caller leave without a goroutine.
func (k *keptSnapshots) get(rv uint64, now int64, done <-chan struct{}, build func() (*Snapshot, error)) (*Snapshot, error) {
	for {
		entry, isBuilder := k.entry(rv, now)
		switch {
		case isBuilder:
			k.fill(entry, build)
			return entry.snapshot, entry.err
		case entry.isReady(): // even if done is closed
		default:
			select {
			case <-entry.ready:
			case <-done:
				return nil, ErrStopped
			}
		}
		if entry.err != errAbandoned && entry.err != ErrStopped {
			return entry.snapshot, entry.err
		}
	}
}

func (e *keptSnapshot) isReady() bool {
	select {
	case <-e.ready:
		return true
	default:
		return e.pinned
	}
}

// fill calls build and sets the entry's result. It removes the entry if build fails.
func (k *keptSnapshots) fill(entry *keptSnapshot, build func() (*Snapshot, error)) {
	entry.err = errAbandoned // for the case that build panics
	defer func() {
		if entry.err != nil {
			k.drop(func(e *keptSnapshot) bool { return e == entry })
		}
		close(entry.ready)
	}()
	entry.snapshot, entry.err = build()
}

// entry returns the entry for rv. If isBuilder is true, the caller must call fill.
func (k *keptSnapshots) entry(rv uint64, now int64) (entry *keptSnapshot, isBuilder bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.mu.entries, func(e *keptSnapshot) bool { return e.rv == rv })
	isBuilder = i < 0
	if isBuilder {
		entry = &keptSnapshot{rv: rv, ready: make(chan struct{})}
	} else {
		entry = k.mu.entries[i]
	}
	entry.used = now
	k.putLocked(entry)
	return entry, isBuilder
}

// pin adds a snapshot referred to by a continue token.
func (k *keptSnapshots) pin(s *Snapshot, now int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Replace an existing entry: its build may be unfinished, and fail.
	k.putLocked(&keptSnapshot{rv: s.rv, used: now, pinned: true, snapshot: s})
}

// putLocked puts the entry first, in place of the one with the same resourceVersion, and removes
// the last one of its kind beyond maxKept.
func (k *keptSnapshots) putLocked(entry *keptSnapshot) {
	k.mu.entries = slices.DeleteFunc(k.mu.entries, func(e *keptSnapshot) bool { return e.rv == entry.rv })
	k.mu.entries = slices.Insert(k.mu.entries, 0, entry)
	alike := 0
	for i, e := range k.mu.entries {
		if e.pinned != entry.pinned {
			continue
		}
		alike++
		if alike > maxKept {
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
