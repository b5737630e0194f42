// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"sync"
)

// maxExact is how many undone snapshots are kept. Each holds the tree nodes in
// which it differs from its neighbours, and the elements in them.
const maxExact = 8

// exactSnapshots keeps the snapshots that At has made, most recently used
// first, so that paging through a list at one resourceVersion undoes the
// window once.
type exactSnapshots struct {
	mu struct {
		sync.Mutex
		entries []*exactSnapshot
	}
}

type exactSnapshot struct {
	rv   uint64
	used int64 // the caller's time at the last use

	once     sync.Once
	snapshot *Snapshot
	err      error
}

// get returns the snapshot at rv, and makes it if it is not there. Concurrent
// callers of one rv share one making; no lock is held meanwhile.
func (x *exactSnapshots) get(rv uint64, now int64, undo func() (*Snapshot, error)) (*Snapshot, error) {
	entry := x.entry(rv, now)
	entry.once.Do(func() {
		entry.err = errAbandoned // unless undo returns
		entry.snapshot, entry.err = undo()
	})
	if entry.err != nil {
		x.drop(func(e *exactSnapshot) bool { return e == entry })
	}
	return entry.snapshot, entry.err
}

func (x *exactSnapshots) entry(rv uint64, now int64) *exactSnapshot {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.mu.entries, func(e *exactSnapshot) bool { return e.rv == rv })
	if i < 0 {
		if len(x.mu.entries) < maxExact {
			x.mu.entries = append(x.mu.entries, nil)
		}
		i = len(x.mu.entries) - 1
		x.mu.entries[i] = &exactSnapshot{rv: rv}
	}
	entry := x.mu.entries[i]
	entry.used = now
	copy(x.mu.entries[1:i+1], x.mu.entries[:i])
	x.mu.entries[0] = entry
	return entry
}

// has tells whether the snapshot at rv is kept.
func (x *exactSnapshots) has(rv uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.mu.entries, func(e *exactSnapshot) bool { return e.rv == rv })
}

func (x *exactSnapshots) drop(which func(*exactSnapshot) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.entries = slices.DeleteFunc(x.mu.entries, which)
}
