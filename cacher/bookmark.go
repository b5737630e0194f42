// SPDX-License-Identifier: Apache-2.0

package cacher

import "time"

// deadlineLead is how long before the end of its request a watcher gets a last
// bookmark, so that the client resumes from there.
const deadlineLead = 2 * time.Second

// timeBuckets are watchers by the second in which they are to get a bookmark.
// A watcher that ends leaves an empty entry in its bucket, which keeps nothing
// of it. The registry's lock guards it.
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
func (b *timeBuckets) schedule(w *watcher, now time.Time) {
	at := now.Add(b.interval)
	if !w.deadline.IsZero() {
		if last := w.deadline.Add(-deadlineLead); last.Before(at) && last.After(now) {
			at = last
		}
	}
	second := max(at.Unix(), b.next)
	if b.bySecond == nil {
		b.bySecond = make(map[int64][]*bookmarkEntry)
	}
	if w.bookmark == nil {
		w.bookmark = &bookmarkEntry{watcher: w}
	}
	b.bySecond[second] = append(b.bySecond[second], w.bookmark)
}

// due takes the buckets up to now.
func (b *timeBuckets) due(now time.Time, visit func(*watcher)) {
	second := now.Unix()
	if b.next == 0 || len(b.bySecond) == 0 {
		b.next = second
	}
	for ; b.next <= second; b.next++ {
		entries := b.bySecond[b.next]
		delete(b.bySecond, b.next)
		for _, entry := range entries {
			if entry.watcher != nil {
				visit(entry.watcher)
			}
		}
	}
}

// bookmarksDue takes the watchers whose bookmark is due, puts them down for
// their next one, and returns those that the dispatcher feeds and that are not
// ahead of it: they have, in their channels at least, everything up to rv, and
// nothing after it (W4). The dispatcher is sending until finish.
func (r *registry) bookmarksDue(now time.Time, to []*watcher) (out []*watcher, rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	r.mu.bookmarks.due(now, func(w *watcher) {
		if w.live && r.mu.rv >= w.after && w.position <= r.mu.cursor {
			to = append(to, w)
		}
		r.mu.bookmarks.schedule(w, now.Truncate(time.Second).Add(time.Second))
	})
	return to, r.mu.rv
}
