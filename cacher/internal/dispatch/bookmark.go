// SPDX-License-Identifier: Apache-2.0

package dispatch

import "time"

// deadlineLead is the time between the last bookmark, from which the client resumes, and the
// deadline.
const deadlineLead = 2 * time.Second

// timeBuckets holds watchers by the second of the timeline at which their bookmark is due. A closed
// watcher leaves an empty entry. Guarded by registry.mu.
type timeBuckets struct {
	interval time.Duration
	bySecond map[int64][]*bookmarkEntry
}

// bookmarkEntry holds nil once the watcher is closed.
type bookmarkEntry struct{ watcher *watcher }

// schedule puts w into the bucket an interval from now, or before its deadline if that is sooner.
func (b *timeBuckets) schedule(w *watcher, now time.Duration) {
	at := now + b.interval
	if last := w.deadline - deadlineLead; w.deadline > 0 && last > now && last < at {
		at = last
	}
	if w.bookmark == nil {
		w.bookmark = &bookmarkEntry{watcher: w}
	}
	second := int64(at / time.Second)
	b.bySecond[second] = append(b.bySecond[second], w.bookmark)
}

// due removes and returns the entries due by until.
func (b *timeBuckets) due(until time.Duration) (due []*bookmarkEntry) {
	for second, entries := range b.bySecond {
		if second <= int64(until/time.Second) {
			due = append(due, entries...)
			delete(b.bySecond, second)
		}
	}
	return due
}
