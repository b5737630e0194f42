// SPDX-License-Identifier: Apache-2.0

package dispatch

import "time"

// deadlineLead is how long before the end of its request a watcher gets a last
// bookmark, so that the client resumes from there.
const deadlineLead = 2 * time.Second

// timeBuckets holds watchers by the second of the timeline when their bookmark is due: about
// as many buckets as an interval has seconds. A watcher that ends leaves an empty entry in its
// bucket. The registry's lock guards them.
type timeBuckets struct {
	interval time.Duration
	bySecond map[int64][]*bookmarkEntry
}

// bookmarkEntry is a watcher in a bucket; nil when it has ended.
type bookmarkEntry struct{ watcher *watcher }

// schedule puts w into the bucket of its next bookmark: an interval from now,
// or shortly before its deadline if that is sooner.
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

// due takes the buckets up to a time.
func (b *timeBuckets) due(until time.Duration) (due []*bookmarkEntry) {
	for second, entries := range b.bySecond {
		if second <= int64(until/time.Second) {
			due = append(due, entries...)
			delete(b.bySecond, second)
		}
	}
	return due
}
