// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"slices"
	"time"
)

// faults are the faults of the storage that are in force, and for how long after
// them the cache may still be recovering.
type faults struct {
	releases map[string]func()
	// after is for how long each may have effects once it is over.
	after map[string]time.Duration
	// calmFrom is when the last one that is over has no effect any more. ever:
	// there was one since the cache was started.
	calmFrom time.Time
	ever     bool
	// requests: requests were held at this time at the latest.
	heldUntil time.Time
}

// The times after which a fault has no effect any more.
const (
	afterHold    = 10 * time.Second
	afterBreak   = 40 * time.Second
	afterFailure = 100 * time.Second
)

// order notes a fault that lasts until it is released.
func (f *faults) order(name string, after time.Duration, release func()) {
	if f.after == nil {
		f.after = map[string]time.Duration{}
	}
	f.ever = true
	f.releases[name], f.after[name] = release, after
}

// happened notes a fault that is over at once.
func (f *faults) happened(after time.Duration) {
	f.ever = true
	if calm := time.Now().Add(after); calm.After(f.calmFrom) {
		f.calmFrom = calm
	}
}

// starts notes that a cache is started, which is not ready at once.
func (f *faults) starts() {
	if calm := time.Now().Add(time.Millisecond); calm.After(f.calmFrom) {
		f.calmFrom = calm
	}
}

func (f *faults) release(name string) bool {
	release, ok := f.releases[name]
	if !ok {
		return false
	}
	release()
	f.happened(f.after[name])
	delete(f.releases, name)
	if isRequest(name) || name == "hang" || name == "events" {
		f.heldUntil = time.Now()
	}
	return true
}

func (f *faults) releaseAll() {
	for _, name := range slices.Sorted(maps.Keys(f.releases)) {
		f.release(name)
	}
}

// holds reports whether requests have been held, or answers held back, since the
// given time.
func (f *faults) holds(since time.Time) bool {
	for name := range f.releases {
		if isRequest(name) || name == "hang" {
			return true
		}
	}
	return !f.heldUntil.Before(since)
}

// troubled reports whether a fault has been in force, or has had effects, since the
// given time.
func (f *faults) troubled(since time.Time) bool {
	return len(f.releases) > 0 || f.calmFrom.After(since)
}

func isRequest(kind string) bool {
	return slices.Contains(requestKinds, kind)
}
