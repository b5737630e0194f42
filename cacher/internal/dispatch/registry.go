// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// registry knows all watchers, and which of them the dispatcher feeds.
// registry.mu is held for bookkeeping, never while sending. Under it the queries' selectors and
// the resource's IndexerFuncs run, and context.AfterFunc (docs/concurrency.md).
type registry struct {
	*Config
	mu struct {
		sync.Mutex
		all    map[uint64]*watcher // by id, so that no order follows from addresses
		groups *match.Groups[*watcher]
		live   int
		// catchingUp has the replayers of watchers that are neither live nor expelled, by the
		// watcher's id.
		catchingUp map[uint64]*replayer
		// cursor is the position of the next event to dispatch, rv the last fully
		// dispatched resourceVersion.
		cursor watchcache.Position
		rv     uint64
		// waiting has the replayers that wait for events, the longest first. They go on one at a
		// time, however many there are: working is true while one evaluates events.
		waiting list.List
		working bool
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

func newRegistry(config *Config) *registry {
	r := &registry{Config: config}
	r.mu.bookmarks = timeBuckets{interval: config.BookmarkInterval, bySecond: make(map[int64][]*bookmarkEntry)}
	r.mu.all = make(map[uint64]*watcher)
	r.mu.catchingUp = make(map[uint64]*replayer)
	r.mu.groups = match.NewGroups[*watcher](config.Indexes)
	return r
}

// add registers the watcher of p as catching up, ends it when its request's context ends,
// and schedules its first bookmark. add returns false if the registry is closed.
func (r *registry) add(ctx context.Context, p *replayer, q match.Query) bool {
	name, w := q.Name(), p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return false
	}
	w.group = r.mu.groups.Join(name, q)
	r.mu.opened++
	w.id = r.mu.opened
	r.mu.all[w.id] = w
	w.replayer, r.mu.catchingUp[w.id] = p, p
	if w.bookmarks {
		r.mu.bookmarks.schedule(w, r.Time.Now())
	}
	w.stopAfterFunc = context.AfterFunc(ctx, func() {
		reason := metrics.EndStopped
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			reason = metrics.EndDeadline
		}
		r.end(w, reason)
	})
	return true
}

// leaveReplayerLocked adds the count of the watcher's replayer to the watcher's own.
func (r *registry) leaveReplayerLocked(w *watcher) {
	w.sent += w.replayer.sent.Load()
	w.replayer = nil
	delete(r.mu.catchingUp, w.id)
}

// goLive hands w over to the dispatcher if w, which has seen all before
// position, has seen all that was dispatched, and reports whether it did. A
// watcher may be ahead of the dispatcher; events that it has seen are then
// skipped. A watcher whose query the dispatcher has no room for stays with its replayer,
// level with the dispatcher: see moves.
func (r *registry) goLive(w *watcher, position watchcache.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.position = position
	if w.ended || w.expelled || position < r.mu.cursor {
		return false
	}
	g, p := w.group, w.replayer
	if len(g.Members) == 0 && !r.mu.groups.File(g) {
		p.starting.Store(false)
		p.bookmarks = make(chan uint64, 1) // none that was due before
		p.owes.Store(0)
		return false
	}
	w.slot = len(g.Members)
	g.Members = append(g.Members, w)
	r.leaveReplayerLocked(w)
	r.mu.live++
	return true
}

// levelLocked reports whether the watcher has everything that was dispatched, from the
// dispatcher or from its replayer.
func (r *registry) levelLocked(w *watcher) bool {
	return w.live() || w.replayer.bookmarks != nil && !w.expelled && w.position >= r.mu.cursor
}

// wait puts p, whose watcher is level, behind the replayers that wait for events. It returns
// false if there may be some now.
func (r *registry) wait(p *replayer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.watcher.ended || !r.levelLocked(p.watcher) {
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
			p.events <- struct{}{}
			return
		}
	}
}

// moveLocked sets the position of the next event to dispatch.
func (r *registry) moveLocked(to watchcache.Position) {
	r.mu.cursor = to
	r.workLocked()
}

// park moves a live watcher from the dispatcher to its replayer. unsent is how many
// events begin counted as sent but were not. park returns false if the watcher has ended.
func (r *registry) park(p *replayer, unsent uint64) bool {
	w := p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.ended {
		return false
	}
	r.removeLiveLocked(w)
	w.replayer, r.mu.catchingUp[w.id] = p, p
	if p.position() < w.position { // it went live ahead of the dispatcher
		p.next.Store(uint64(w.position))
		p.at.Store(uint64(w.position))
	}
	w.position = p.position()
	w.sent -= unsent
	return true
}

func (r *registry) removeLiveLocked(w *watcher) {
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
	r.mu.live--
}

// end ends w, from any goroutine and any number of times. The goroutine that feeds w closes
// the channel, the dispatcher when it is done sending; if nobody is sending, end does.
func (r *registry) end(w *watcher, reason metrics.EndReason) {
	now := r.Clock.Now()
	r.mu.Lock()
	if w.ended {
		r.mu.Unlock()
		return
	}
	if !w.expelled {
		r.recordEndLocked(w, reason, now)
		defer r.Metrics.Ended(reason)
	}
	closeNow := r.endLocked(w)
	r.mu.Unlock()
	if closeNow {
		close(w.result)
	}
	w.stopAfterFunc()
}

// expel ends the watcher of p, even in the middle of a blocked send, unless it has gone live
// or has ended otherwise. The replayer releases its snapshot and events at once, and still
// has to send the error, which is failure if that is not nil; see conclude.
func (r *registry) expel(p *replayer, reason metrics.EndReason, failure *apierrors.StatusError) {
	now, w := r.Clock.Now(), p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.ended || w.expelled || w.replayer != p {
		return
	}
	r.recordEndLocked(w, reason, now)
	w.expelled = true
	delete(r.mu.catchingUp, w.id)
	r.leaveWaitingLocked(p)
	r.Metrics.Ended(reason)
	p.reason, p.failure = reason, failure
	close(p.verdict)
}

// endLocked ends w, and reports whether the caller must close its channel.
func (r *registry) endLocked(w *watcher) bool {
	w.ended = true
	delete(r.mu.all, w.id)
	if w.bookmark != nil {
		w.bookmark.watcher = nil
	}
	r.mu.groups.Leave(w.group)
	if p := w.replayer; p != nil {
		r.leaveReplayerLocked(w)
		r.leaveWaitingLocked(p)
		close(p.quit)
		return false
	}
	r.removeLiveLocked(w)
	if r.mu.sending {
		r.mu.ended = append(r.mu.ended, w)
		return false
	}
	return true
}

// level returns the replayers of the watchers that are level with the dispatcher.
func (r *registry) level() (level []*replayer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.catchingUp {
		if r.levelLocked(p.watcher) {
			level = append(level, p)
		}
	}
	return level
}

// beginAll returns all live watchers: from here to finish the dispatcher is
// sending.
func (r *registry) beginAll(to []*watcher) []*watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	for _, w := range r.mu.all {
		if w.live() {
			to = append(to, w)
		}
	}
	return to
}

// finish ends the sending that one of the begin methods has begun.
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
	r.moveLocked(cursor)
	r.mu.rv = 0
	for _, w := range r.mu.all {
		if w.live() && w.position < cursor {
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

// counts returns how many watchers are live and how many catch up.
func (r *registry) counts() (live, catchingUp int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.live, len(r.mu.catchingUp)
}

// replayers returns the replayers of all watchers that catch up, and the position of the next event to dispatch.
func (r *registry) replayers() (all []*replayer, cursor watchcache.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = make([]*replayer, 0, len(r.mu.catchingUp))
	inTurns(&r.mu, r.mu.catchingUp, func(p *replayer) { all = append(all, p) })
	if len(r.mu.catchingUp) == 0 {
		r.mu.catchingUp = make(map[uint64]*replayer) // there may have been many
	}
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
			if w.live() {
				to = append(to, w)
			} else {
				select { // an older one, which was not sent yet
				case <-w.replayer.bookmarks:
				default:
				}
				w.replayer.owes.Store(r.mu.rv)
				w.replayer.bookmarks <- r.mu.rv
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
		if r.levelLocked(w) && (len(w.result) > 0 || !w.live() && w.replayer.owes.Load() > 0) {
			n++
		}
	}
	return n
}
