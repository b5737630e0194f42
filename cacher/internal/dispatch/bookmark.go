// SPDX-License-Identifier: Apache-2.0

package dispatch

import "time"

// deadlineLead is how long before the end of its request a watcher gets a last
// bookmark, so that the client resumes from there.
const deadlineLead = 2 * time.Second

// timeBuckets holds watchers by the second of the timeline in which their bookmark is
// due. A watcher that ends leaves an empty entry in its bucket. The registry's lock
// guards it.
type timeBuckets struct {
	interval time.Duration
	bySecond map[int64][]*bookmarkEntry
	// next is the first second that was not taken yet.
	next int64
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
	second := max(int64(at/time.Second), b.next)
	if b.bySecond == nil {
		b.bySecond = make(map[int64][]*bookmarkEntry)
	}
	if w.bookmark == nil {
		w.bookmark = &bookmarkEntry{watcher: w}
	}
	b.bySecond[second] = append(b.bySecond[second], w.bookmark)
}

// due takes the buckets up to now. It costs no more than there are buckets,
// however long ago the last call was.
func (b *timeBuckets) due(now time.Duration, visit func(*watcher)) {
	from, second := b.next, int64(now/time.Second)
	b.next = max(b.next, second+1)
	if second-from > int64(len(b.bySecond)) {
		for at, entries := range b.bySecond {
			if at <= second {
				b.take(at, entries, visit)
			}
		}
		return
	}
	for ; from <= second; from++ {
		b.take(from, b.bySecond[from], visit)
	}
}

func (b *timeBuckets) take(second int64, entries []*bookmarkEntry, visit func(*watcher)) {
	delete(b.bySecond, second)
	for _, entry := range entries {
		if entry.watcher != nil {
			visit(entry.watcher)
		}
	}
}
