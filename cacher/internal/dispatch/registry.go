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

// registry holds all watchers. Selectors of queries, the resource's IndexerFuncs and
// context.AfterFunc run under registry.mu (docs/concurrency.md). It is not held while sending.
type registry struct {
	*Config
	mu struct {
		sync.Mutex
		all map[uint64]*watcher // by id, so no order depends on addresses
		// groups indexes the queries of all watchers. Its members are the live watchers.
		groups *match.Groups[*watcher]
		count  [states]int
		// cursor is the position of the next event to dispatch, rv the last fully dispatched
		// resourceVersion.
		cursor watchcache.Position
		rv     uint64
		// waiting lists the replayers waiting for events, longest wait first. They take turns:
		// working is true while one evaluates events.
		waiting list.List
		working bool
		// sending is true while the dispatcher may send to watchers. Those closed meanwhile leave
		// their channels in toClose for it.
		sending   bool
		toClose   []chan watch.Event
		closed    bool
		opened    uint64
		history   endings
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

// levelLocked reports whether w has every dispatched event.
func (r *registry) levelLocked(w *watcher) bool {
	return w.is(live) || w.is(parked) && w.position >= r.mu.cursor
}

// wait appends p to waiting. It returns false if p's watcher is not level.
func (r *registry) wait(p *replayer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.levelLocked(p.watcher) {
		return false
	}
	p.place = r.mu.waiting.PushBack(p)
	return true
}

func (r *registry) leaveWaitingLocked(p *replayer) {
	if p.place != nil {
		r.mu.waiting.Remove(p.place)
		p.place = nil
	}
}

func (r *registry) worked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.working = false
	r.workLocked()
}

// workLocked gives the turn to the first waiting replayer that is not level. One ahead of the
// dispatcher may precede it.
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

func (r *registry) moveLocked(to watchcache.Position) {
	r.mu.cursor = to
	r.workLocked()
}

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

// finish ends the send phase begun by begin or beginBookmarks.
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

func (r *registry) dispatched(rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.rv = rv
}

// restart moves the cursor to the start of the window after eviction of the event at the cursor,
// and returns the live watchers that missed events. It resets rv, which may be of another history.
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

func (r *registry) lastOpened() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.opened
}

func (r *registry) counts() [states]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.count
}

// replayers returns the replayers of starting and parked watchers, and the cursor.
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

// beginBookmarks starts a send phase that lasts until finish, and reschedules the watchers whose
// bookmark is due by until. out is to plus the live ones not ahead of the dispatcher, which have
// everything up to rv and nothing after it (W4). Replayers send the bookmarks of other level ones.
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

// unread returns the number of level watchers with something in their channel or a bookmark to
// send.
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
