// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// registry knows all watchers, and which of them the dispatcher feeds.
// registry.mu is held for bookkeeping only: never while sending or while another
// lock is taken.
type registry struct {
	metrics *metrics.Resource
	clock   clock.PassiveClock
	time    timeline.Timeline

	mu struct {
		sync.Mutex
		all    map[uint64]*watcher // by id, so that no order follows from addresses
		groups *match.Groups[*watcher]
		live   int
		// expelled is how many of all have been expelled: these have ended, but their
		// clients have not read the error yet.
		expelled int
		// cursor is the position of the next event to dispatch, rv the last fully
		// dispatched resourceVersion.
		cursor watchcache.Position
		rv     uint64
		// sending is true while the dispatcher may send to watchers that were
		// live when it looked. Watchers that end meanwhile wait in ended, and the
		// dispatcher closes their channels.
		sending bool
		ended   []*watcher
		closed  bool
		// opened is how many watches there have ever been.
		opened uint64
		// history is the watches that have ended last.
		history endings
		// bookmarks has the watchers by the time of their next bookmark.
		bookmarks timeBuckets
	}
}

func newRegistry(m *metrics.Resource, clock clock.PassiveClock, line timeline.Timeline, indexes *match.Indexes, bookmarks time.Duration) *registry {
	r := &registry{metrics: m, clock: clock, time: line}
	r.mu.bookmarks.interval = bookmarks
	r.mu.all = make(map[uint64]*watcher)
	r.mu.groups = match.NewGroups[*watcher](indexes)
	return r
}

// add registers w as catching up, until quit is closed. It returns false if
// the registry is closed.
func (r *registry) add(w *watcher, q match.Query) (quit chan struct{}, ok bool) {
	name := q.Name()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return nil, false
	}
	w.group = r.mu.groups.Join(name, q)
	w.quit = make(chan struct{})
	r.mu.opened++
	w.id = r.mu.opened
	r.mu.all[w.id] = w
	return w.quit, true
}

// follow ends w when its request's context ends, notes its replayer, and
// schedules its first bookmark.
func (r *registry) follow(ctx context.Context, w *watcher, replayer *replayer) {
	release := context.AfterFunc(ctx, func() {
		reason := metrics.EndStopped
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			reason = metrics.EndDeadline
		}
		r.end(w, reason)
	})
	if !r.attach(w, replayer, release) {
		release() // nobody else does
	}
}

// attach gives a watcher its replayer, its release function and its place among the
// bookmarks. It returns false if the watcher has ended.
func (r *registry) attach(w *watcher, replayer *replayer, release func() bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.ended {
		return false
	}
	w.release, w.replayer = release, replayer
	if w.bookmarks {
		r.mu.bookmarks.schedule(w, w.began)
	}
	return true
}

// goLive hands w over to the dispatcher if w, which has seen all before
// position, has seen all that was dispatched, and reports whether it did. A
// watcher may be ahead of the dispatcher; events that it has seen are then
// skipped.
func (r *registry) goLive(w *watcher, position watchcache.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.position = position
	if w.ended || w.expelled || position < r.mu.cursor {
		return false
	}
	g := w.group
	if len(g.Members) == 0 {
		r.mu.groups.File(g)
	}
	w.slot = len(g.Members)
	g.Members = append(g.Members, w)
	w.settle()
	w.live, w.quit = true, nil
	r.mu.live++
	return true
}

// park moves a live watcher from the dispatcher to its replayer. unsent is how many of the
// events that begin has counted as sent were not. park returns false if the watcher has
// ended.
func (r *registry) park(p *replayer, unsent uint64) bool {
	w := p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.ended {
		return false
	}
	r.unliveLocked(w)
	w.quit, w.replayer = p.quit, p
	if p.position() < w.position { // it went live ahead of the dispatcher
		p.next.Store(uint64(w.position))
		p.at.Store(uint64(w.position))
	}
	w.position = p.position()
	w.sent -= unsent
	return true
}

func (r *registry) unliveLocked(w *watcher) {
	g := w.group
	last := len(g.Members) - 1
	moved := g.Members[last]
	g.Members[w.slot], moved.slot = moved, w.slot
	g.Members[last] = nil
	g.Members = g.Members[:last]
	if last == 0 {
		r.mu.groups.Unfile(g)
		g.Members = nil
	}
	w.live = false
	r.mu.live--
}

// end ends w, from any goroutine and any number of times. The goroutine that feeds w closes
// the channel, the dispatcher when it is done sending; if nobody is sending, end does.
func (r *registry) end(w *watcher, reason metrics.EndReason) {
	now := r.clock.Now()
	r.mu.Lock()
	if w.ended {
		r.mu.Unlock()
		return
	}
	counted := w.expelled
	if !counted {
		r.endsLocked(w, reason, now)
	}
	closeNow := r.endLocked(w)
	release := w.release
	r.mu.Unlock()
	if closeNow {
		close(w.result)
	}
	if release != nil {
		release()
	}
	if !counted {
		r.metrics.Ended(reason)
	}
}

// expel marks w as ended for the reason; its replayer, identified by quit, still has to
// send the error. It returns false, and does nothing, if w has ended or has left the
// replayer.
func (r *registry) expel(w *watcher, quit chan struct{}, reason metrics.EndReason) bool {
	now := r.clock.Now()
	r.mu.Lock()
	if w.ended || w.expelled || w.quit != quit {
		r.mu.Unlock()
		return false
	}
	r.endsLocked(w, reason, now)
	w.expelled = true
	r.mu.expelled++
	r.mu.Unlock()
	r.metrics.Ended(reason)
	return true
}

// endLocked ends w, and reports whether the caller must close its channel.
func (r *registry) endLocked(w *watcher) bool {
	w.ended = true
	w.settle()
	delete(r.mu.all, w.id)
	if w.expelled {
		r.mu.expelled--
	}
	if w.bookmark != nil {
		w.bookmark.watcher = nil
	}
	live := w.live
	if live {
		r.unliveLocked(w)
	}
	r.mu.groups.Leave(w.group)
	switch {
	case !live:
		close(w.quit)
		return false
	case r.mu.sending:
		r.mu.ended = append(r.mu.ended, w)
		return false
	}
	return true
}

// close ends all watchers and takes no new ones.
func (r *registry) close() {
	r.mu.Lock()
	r.mu.closed = true
	all := make([]*watcher, 0, len(r.mu.all))
	for _, w := range r.mu.all {
		all = append(all, w)
	}
	r.mu.Unlock()
	for _, w := range all {
		r.end(w, metrics.EndShutdown)
	}
}

// beginAll returns all live watchers: from here to finish the dispatcher is
// sending.
func (r *registry) beginAll(to []*watcher) []*watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	for _, w := range r.mu.all {
		if w.live {
			to = append(to, w)
		}
	}
	return to
}

// finish undoes begin: the dispatcher sends nothing any more.
func (r *registry) finish() {
	r.mu.Lock()
	r.mu.sending = false
	ended := r.mu.ended
	r.mu.ended = nil
	r.mu.Unlock()
	for _, w := range ended {
		close(w.result)
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
	r.mu.cursor, r.mu.rv = cursor, 0
	for _, w := range r.mu.all {
		if w.live && w.position < cursor {
			behind = append(behind, w)
		}
	}
	return behind
}

// counts returns how many watchers are live and how many catch up.
func (r *registry) counts() (live, catchingUp int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.live, len(r.mu.all) - r.mu.live - r.mu.expelled
}

// watched reports whether there is a watcher, expelled ones included.
func (r *registry) watched() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.all) > 0
}

// reached returns how many watchers are live, and the position of the next event
// that will be dispatched.
func (r *registry) reached() (live int, cursor watchcache.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.live, r.mu.cursor
}

// bookmarksDue takes the watchers whose bookmark is due, and schedules their next one. It
// returns the live ones that are not ahead of the dispatcher: they have everything up to
// rv and nothing after it (W4). From here to finish the dispatcher is sending.
func (r *registry) bookmarksDue(now time.Duration, to []*watcher) (out []*watcher, rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	r.mu.bookmarks.due(now, func(w *watcher) {
		if r.takesBookmarkLocked(w) {
			to = append(to, w)
		}
		r.mu.bookmarks.schedule(w, now.Truncate(time.Second)+time.Second)
	})
	return to, r.mu.rv
}

// bookmarksOfAll is bookmarksDue for all watchers that have asked for bookmarks.
func (r *registry) bookmarksOfAll(to []*watcher) (out []*watcher, rv uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	for _, w := range r.mu.all {
		if w.bookmarks && r.takesBookmarkLocked(w) {
			to = append(to, w)
		}
	}
	return to, r.mu.rv
}

// takesBookmarkLocked reports whether a watcher has everything up to the
// resourceVersion that was dispatched, and nothing after it.
func (r *registry) takesBookmarkLocked(w *watcher) bool {
	return w.live && r.mu.rv > 0 && r.mu.rv >= w.shown && w.position <= r.mu.cursor
}

// unread returns how many live watchers have something in their channels that their
// clients have not taken.
func (r *registry) unread() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.mu.all {
		if w.live && len(w.result) > 0 {
			n++
		}
	}
	return n
}
