// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// state is the state of a watcher. All transitions are in this file:
//
//	from              to       when                                        by
//	                  starting Open                                        its caller
//	starting, parked  live     level with the dispatcher                   the replayer
//	starting          parked   level, but no room for a large query        the replayer
//	live              parked   the channel is full, or events were evicted the dispatcher
//	starting, parked  ending   an error, or a limit of the supervisor      the replayer, the supervisor
//	live, parked      ending   storage failed and the watcher is level     the dispatcher
//	any               closed   the client or the cache stops               any goroutine
//	ending            closed   the client received the error               the replayer
type state uint32

const (
	// starting watchers get initial events, then those of the window, from a replayer.
	starting state = iota
	// live watchers are fed by the dispatcher.
	live
	// parked watchers get the window's events from a replayer.
	parked
	// ending watchers get an error at most, then the replayer closes them.
	ending
	closed

	states
)

// watcher is the position of a watch in the sequence of events, and its channel. Only the
// dispatcher sends to a live watcher, and only its replayer to any other one. The sender also
// closes the channel once the watcher is closed, or becomeClosed does if the dispatcher isn't
// sending.
type watcher struct {
	registry *registry
	// id numbers the watches of a Fanout, from 1.
	id     uint64
	result chan watch.Event
	group  *match.Group[*watcher]
	// after and shown are Start.After and Start.Shown.
	after, shown uint64
	// bookmarks is true if the client requested them. deadline is on the timeline, 0 if none.
	// started is wall-clock time.
	bookmarks bool
	deadline  time.Duration
	started   time.Time
	client    unique.Handle[status.Client]
	// encoder is nil if initial events are private copies.
	encoder WatchEncoder

	// sent counts the events put into the channel, except bookmarks. The dispatcher counts before
	// it sends.
	sent atomic.Uint64
	// state changes under registry.mu.
	state atomic.Uint32

	// Guarded by registry.mu.

	// replayer is nil in the states live and closed.
	replayer *replayer
	// slot is the index in group.Members. Only live watchers are members.
	slot int
	// position is that of the next event to evaluate when the watcher was last parked or level. A
	// parked watcher is level if the dispatcher's cursor is not after position.
	position watchcache.Position
	// bookmark is nil if the client did not request bookmarks, and empty once the watcher is
	// closed.
	bookmark      *bookmarkEntry
	stopAfterFunc func() bool

	// delivered is owned by the sender.
	delivered deliveries
}

var _ watch.Interface = (*watcher)(nil)

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. A server stops the watch on its own timer for the deadline,
// before or after the context ends. Both count as EndDeadline.
func (w *watcher) Stop() {
	reason := metrics.EndStopped
	if w.deadline > 0 && w.registry.Time.Now() >= w.deadline {
		reason = metrics.EndDeadline
	}
	w.registry.end(w, reason)
}

// is reports whether w is in state s. Without registry.mu the answer may be out of date.
func (w *watcher) is(s state) bool { return state(w.state.Load()) == s }

// isPast reports whether the watcher received an event above rv, i.e. one of an incomplete
// revision. A bookmark at rv would go back.
func (w *watcher) isPast(rv uint64) bool { return w.delivered.rv > rv }

// open registers p's watcher as starting, until ctx ends. It returns false if the registry is
// closed.
func (r *registry) open(ctx context.Context, p *replayer, q match.Query) bool {
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
	r.mu.count[starting]++
	w.replayer = p
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

// goLive makes w live if it has evaluated every dispatched event, and reports whether it did. w has
// evaluated the events before position, maybe some ahead of the dispatcher, which then skips them.
// If the dispatcher has no room for its query, w is parked and keeps its replayer.
func (r *registry) goLive(w *watcher, position watchcache.Position) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.position = position
	if w.is(ending) || w.is(closed) || position < r.mu.cursor {
		return false
	}
	if r.becomeLive(w) {
		return true
	}
	r.becomeParked(w, w.replayer)
	return false
}

// park moves a live watcher to replayer p, or returns false if it is closed. unsent is the number
// of unsent events that begin counted as sent.
func (r *registry) park(p *replayer, unsent uint64) bool {
	w := p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.is(closed) {
		return false
	}
	if p.position() < w.position { // went live ahead of the dispatcher
		p.next.Store(uint64(w.position))
		p.at.Store(uint64(w.position))
	}
	w.position = p.position()
	w.sent.Add(-unsent)
	r.becomeParked(w, p)
	return true
}

// expel ends p's watcher, even during a blocked send, unless it is live, ending or closed. The
// replayer drops its snapshot and events at once, then sends failure or, if that is nil, the error
// for reason; see finalError.
func (r *registry) expel(p *replayer, reason metrics.EndReason, failure *metav1.Status) {
	now, w := r.Clock.Now(), p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.replayer != p || w.is(ending) {
		return
	}
	r.recordEndLocked(w, reason, now)
	r.becomeEnding(p, reason, failure)
}

// fail ends p's watcher with a storage failure if it is level. It returns true if the watcher was
// live: p is then its replayer and must conclude.
func (r *registry) fail(p *replayer, failure *metav1.Status) (wasLive bool) {
	now, w := r.Clock.Now(), p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.levelLocked(w) {
		return false
	}
	r.recordEndLocked(w, metrics.EndFailed, now)
	if wasLive = w.is(live); !wasLive {
		p = w.replayer
	}
	r.becomeEnding(p, metrics.EndFailed, failure)
	return wasLive
}

// end closes w. Any goroutine may call it, repeatedly.
func (r *registry) end(w *watcher, reason metrics.EndReason) {
	now := r.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.is(closed) {
		return
	}
	if !w.is(ending) {
		r.recordEndLocked(w, reason, now)
	}
	r.becomeClosed(w)
	w.stopAfterFunc()
}

// becomeLive returns false if the dispatcher has no room for the query. The become methods need
// registry.mu.
func (r *registry) becomeLive(w *watcher) bool {
	g := w.group
	if len(g.Members) == 0 && !r.mu.groups.File(g) {
		return false
	}
	w.slot = len(g.Members)
	g.Members = append(g.Members, w)
	w.replayer = nil
	r.become(w, live)
	return true
}

func (r *registry) becomeParked(w *watcher, p *replayer) {
	if w.is(live) {
		r.removeLiveLocked(w)
	}
	w.replayer = p
	p.owes.Store(0) // drop a bookmark due before
	r.become(w, parked)
}

func (r *registry) becomeEnding(p *replayer, reason metrics.EndReason, failure *metav1.Status) {
	if w := p.watcher; w.is(live) {
		r.removeLiveLocked(w)
		w.replayer = p
	}
	r.leaveWaitingLocked(p)
	p.reason, p.failure = reason, failure
	r.become(p.watcher, ending)
	close(p.stop)
}

func (r *registry) becomeClosed(w *watcher) {
	delete(r.mu.all, w.id)
	r.mu.groups.Leave(w.group)
	if w.bookmark != nil {
		w.bookmark.watcher = nil
	}
	if p := w.replayer; p != nil {
		r.leaveWaitingLocked(p)
		if !w.is(ending) {
			close(p.stop)
		}
		close(p.gone)
		w.replayer = nil
	} else {
		r.removeLiveLocked(w)
		if r.mu.sending {
			r.mu.toClose = append(r.mu.toClose, w.result)
		} else {
			close(w.result)
		}
	}
	r.become(w, closed)
}

func (r *registry) become(w *watcher, to state) {
	from := state(w.state.Load())
	r.mu.count[from]--
	r.mu.count[to]++
	w.state.Store(uint32(to))
	r.checkLocked(w, from)
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
}
