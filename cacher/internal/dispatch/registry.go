// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// registry knows all watchers, and which of them the dispatcher feeds.
// registry.mu is held for bookkeeping, never while sending. Under it the queries' selectors and
// the resource's IndexerFuncs run, and context.AfterFunc (docs/concurrency.md).
type registry struct {
	*Config
	mu struct {
		sync.Mutex
		all map[uint64]*watcher // by id, so that no order follows from addresses
		// groups is the index of the watchers by query; its members are the live ones.
		groups *match.Groups[*watcher]
		count  [states]int // of the watchers by state
		// cursor is the position of the next event to dispatch, rv the last fully
		// dispatched resourceVersion.
		cursor watchcache.Position
		rv     uint64
		// waiting has the replayers that wait for events, the longest first. They go on one at a
		// time, however many there are: working is true while one evaluates events.
		waiting list.List
		working bool
		// sending is true while the dispatcher may send to watchers that were live when it
		// looked. Then the dispatcher closes the channels of those that are closed meanwhile.
		sending bool
		toClose []chan watch.Event
		closed  bool
		// opened is how many watches there have ever been.
		opened uint64
		// history is the watches that have ended last.
		history endings
		// bookmarks has the watchers by the time of their next bookmark.
		bookmarks timeBuckets
	}
}

func newRegistry(config *Config) *registry {
	r := &registry{Config: config}
	r.mu.bookmarks = timeBuckets{interval: config.BookmarkInterval, bySecond: make(map[int64][]*bookmarkEntry)}
	r.mu.all = make(map[uint64]*watcher)
	r.mu.groups = match.NewGroups[*watcher](config.Indexes)
	return r
}

// levelLocked reports whether the watcher has everything that was dispatched, from the
// dispatcher or from its replayer.
func (r *registry) levelLocked(w *watcher) bool {
	return w.is(live) || w.is(parked) && w.position >= r.mu.cursor
}

// wait puts p, whose watcher is level, behind the replayers that wait for events. It returns
// false if there may be some now.
func (r *registry) wait(p *replayer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.levelLocked(p.watcher) {
		return false
	}
	p.place = r.mu.waiting.PushBack(p)
	return true
}

// leaveWaitingLocked ends the wait of p, if it waits.
func (r *registry) leaveWaitingLocked(p *replayer) {
	if p.place != nil {
		r.mu.waiting.Remove(p.place)
		p.place = nil
	}
}

// worked has the next replayer go on that waits for events.
func (r *registry) worked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.working = false
	r.workLocked()
}

// workLocked has the first replayer go on that is not level any more: one that is ahead of the
// dispatcher may wait before it.
func (r *registry) workLocked() {
	for at := r.mu.waiting.Front(); at != nil && !r.mu.working; at = at.Next() {
		if p := at.Value.(*replayer); !r.levelLocked(p.watcher) {
			r.leaveWaitingLocked(p)
			r.mu.working = true
			p.turn.Store(true)
			p.wakeUp()
			return
		}
	}
}

// moveLocked sets the position of the next event to dispatch.
func (r *registry) moveLocked(to watchcache.Position) {
	r.mu.cursor = to
	r.workLocked()
}

// level returns the watchers that have everything that was dispatched.
func (r *registry) level() (level []*watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.mu.all {
		if r.levelLocked(w) {
			level = append(level, w)
		}
	}
	return level
}

// finish ends the sending that one of the begin methods has begun.
func (r *registry) finish() {
	r.mu.Lock()
	r.mu.sending = false
	channels := r.mu.toClose
	r.mu.toClose = nil
	r.mu.Unlock()
	for _, c := range channels {
		close(c)
	}
}

// dispatched records that everything up to rv was dispatched.
func (r *registry) dispatched(rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.rv = rv
}

// restart moves the cursor to where the window begins now, because the events at it are
// gone, and returns the live watchers that would have needed them. The resourceVersion that
// was dispatched before is forgotten: it may be of another history.
func (r *registry) restart(cursor watchcache.Position) (behind []*watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveLocked(cursor)
	r.mu.rv = 0
	for _, w := range r.mu.all {
		if w.is(live) && w.position < cursor {
			behind = append(behind, w)
		}
	}
	return behind
}

// lastOpened returns the number of the watcher that was opened last.
func (r *registry) lastOpened() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.opened
}

// counts returns the number of watchers in each state.
func (r *registry) counts() [states]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.count
}

// replayers returns the replayers of all watchers that catch up, and the position of the next event to dispatch.
func (r *registry) replayers() (all []*replayer, cursor watchcache.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	inTurns(&r.mu, r.mu.all, func(w *watcher) {
		if w.is(starting) || w.is(parked) {
			all = append(all, w.replayer)
		}
	})
	return all, r.mu.cursor
}

// beginBookmarks takes the watchers whose bookmark is due until a time, and schedules their
// next one. It returns the live ones that are not ahead of the dispatcher: they have
// everything up to rv and nothing after it (W4). From here to finish the dispatcher is sending.
// Replayers of watchers that are level send theirs.
func (r *registry) beginBookmarks(now, until time.Duration, to []*watcher) (out []*watcher, rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	for _, entry := range r.mu.bookmarks.due(until) {
		w := entry.watcher
		if w == nil {
			continue
		}
		if r.levelLocked(w) && r.mu.rv > 0 && r.mu.rv >= w.shown && w.position <= r.mu.cursor {
			if w.is(live) {
				to = append(to, w)
			} else {
				w.replayer.owes.Store(r.mu.rv)
				w.replayer.wakeUp()
			}
		}
		r.mu.bookmarks.schedule(w, now.Truncate(time.Second)+time.Second)
	}
	return to, r.mu.rv
}

// unread returns how many watchers that have been sent everything have something that their
// clients have not taken.
func (r *registry) unread() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.mu.all {
		if r.levelLocked(w) && (len(w.result) > 0 || w.is(parked) && w.replayer.owes.Load() > 0) {
			n++
		}
	}
	return n
}
