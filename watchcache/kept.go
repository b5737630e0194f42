// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"sync"
)

// maxKept is the number of snapshots that are kept of each kind: those that At
// has made, and those given to Keep. Each holds the tree nodes in which it
// differs from the other snapshots, and the elements in them.
const maxKept = 8

// keptSnapshots keeps the snapshots of earlier versions that are likely to be
// asked for again, most recently used first, so that paging through a list at
// one resourceVersion makes it once, and goes on when the window no longer
// reaches it.
type keptSnapshots struct {
	mu struct {
		sync.Mutex
		entries []*keptSnapshot
	}
}

type keptSnapshot struct {
	rv       uint64
	used     int64 // the caller's time at the last use
	promised bool

	// made is closed once snapshot and err are set.
	made     chan struct{}
	snapshot *Snapshot
	err      error
}

// get returns the snapshot at rv, and calls build if there is none. Concurrent
// callers with the same rv share one call of build, unless its caller gives up;
// no lock is held during the call. done ends the wait of this caller.
func (k *keptSnapshots) get(rv uint64, now int64, done <-chan struct{}, build func() (*Snapshot, error)) (*Snapshot, error) {
	for {
		entry, mine := k.entry(rv, now)
		if mine {
			k.fill(entry, build)
			return entry.snapshot, entry.err
		}
		select {
		case <-entry.made: // even if done is closed, too
		default:
			select {
			case <-entry.made:
			case <-done:
				return nil, ErrStopped
			}
		}
		if entry.err != errAbandoned && entry.err != ErrStopped {
			return entry.snapshot, entry.err
		}
	}
}

// fill calls build and sets the entry's result. An entry whose build failed is
// removed: only the callers that were waiting for it get the error.
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
	if i >= 0 {
		entry = k.mu.entries[i]
		k.mu.entries = slices.Delete(k.mu.entries, i, i+1)
	} else {
		entry, mine = &keptSnapshot{rv: rv, made: make(chan struct{})}, true
	}
	entry.used = now
	k.insertLocked(entry)
	return entry, mine
}

// promise keeps a snapshot that readers were given a continue token for.
func (k *keptSnapshots) promise(s *Snapshot, now int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.mu.entries, func(e *keptSnapshot) bool { return e.rv == s.rv })
	if i >= 0 {
		// The entry may be incomplete still, and fail.
		k.mu.entries = slices.Delete(k.mu.entries, i, i+1)
	}
	k.insertLocked(&keptSnapshot{rv: s.rv, used: now, promised: true, snapshot: s, made: closed})
}

// insertLocked puts the entry first, as the one used last. If there are more
// than maxKept of its kind, the least recently used one is removed.
func (k *keptSnapshots) insertLocked(entry *keptSnapshot) {
	k.mu.entries = slices.Insert(k.mu.entries, 0, entry)
	alike := 0
	for i, e := range k.mu.entries {
		if e.promised != entry.promised {
			continue
		}
		if alike++; alike > maxKept {
			k.mu.entries = slices.Delete(k.mu.entries, i, i+1)
			return
		}
	}
}

// closed is a closed channel, for entries that need no building.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

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
