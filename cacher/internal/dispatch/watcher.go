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

// state is the state of a watcher. This file contains every transition:
//
//	from              to       when                                     by
//	                  starting Open                                     its caller
//	starting, parked  live     level with the dispatcher                the replayer
//	starting          parked   level, but no room for a large query     the replayer
//	live              parked   the channel is full, or events are lost  the dispatcher
//	starting, parked  ending   an error, or a limit of the supervisor   the replayer, the supervisor
//	live, parked      ending   storage failed, and the watcher is level the dispatcher
//	any               closed   the client stops, or the cache           any goroutine
//	ending            closed   the client received the error            the replayer
type state uint32

const (
	// starting: a replayer sends the initial events, then those of the window.
	starting state = iota
	// live: the dispatcher sends events.
	live
	// parked: a replayer sends the events of the window.
	parked
	// ending: the replayer sends an error, or nothing, and closes the watcher.
	ending
	// closed: nothing more is sent, and the channel is closed as soon as nobody sends.
	closed

	states
)

// watcher is one watch: a position in the sequence of events, and a channel. The dispatcher
// feeds a live watcher, its replayer any other one. Only the goroutine that feeds a watcher
// sends on its channel. That goroutine also closes the channel of a watcher that is closed,
// unless the dispatcher isn't sending: then becomeClosed does.
type watcher struct {
	registry *registry
	// id counts the watches of a Fanout from 1 on.
	id     uint64
	result chan watch.Event
	// group is all watchers with the same query.
	group *match.Group[*watcher]
	// after and shown are those of its Start.
	after, shown uint64
	// bookmarks is true if the client requested them. deadline is the end of the request
	// on the timeline, 0 if it has none; started is the beginning by the clock, for people.
	bookmarks bool
	deadline  time.Duration
	started   time.Time
	// client is shared by many watches.
	client unique.Handle[status.Client]
	// encoder encodes the initial events; nil if they are private copies.
	encoder WatchEncoder

	// sent is the number of events put into the channel, without bookmarks. The goroutine
	// that feeds the watcher counts; the dispatcher counts before it sends.
	sent atomic.Uint64
	// state changes under registry.mu.
	state atomic.Uint32

	// Guarded by registry.mu.

	// replayer is nil in the states live and closed.
	replayer *replayer
	// slot is the watcher's index in group.Members while it is live. No other watcher is
	// a member.
	slot int
	// position is the one of the first event that the watcher had not looked at when it was
	// last parked or level. A parked watcher is level if the dispatcher's cursor is not
	// beyond it.
	position watchcache.Position
	// bookmark is the watcher's entry in the time buckets, if it requested bookmarks. It is
	// empty once the watcher is closed.
	bookmark *bookmarkEntry
	// stopAfterFunc undoes the AfterFunc on the request's context.
	stopAfterFunc func() bool

	// delivered belongs to the goroutine that feeds the watcher.
	delivered deliveries
}

var _ watch.Interface = (*watcher)(nil)

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. A server has its own timer for the end of a request, and
// stops the watch when the timer fires, before or after the context ends: both are the
// deadline.
func (w *watcher) Stop() {
	reason := metrics.EndStopped
	if w.deadline > 0 && w.registry.Time.Now() >= w.deadline {
		reason = metrics.EndDeadline
	}
	w.registry.end(w, reason)
}

// is reports whether w is in a state. Without registry.mu it may leave that state at any time.
func (w *watcher) is(s state) bool { return state(w.state.Load()) == s }

// isPast reports whether the watcher has received an event above rv, of a revision that
// is not complete yet: a bookmark at rv would go back.
func (w *watcher) isPast(rv uint64) bool { return w.delivered.rv > rv }

// open registers the watcher of p, which is starting, ends it when its request's context
// ends, and schedules its first bookmark. open returns false if the registry is closed.
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

// goLive hands w over to the dispatcher if w, which has seen all before
// position, has seen all that was dispatched, and reports whether it did. A
// watcher may be ahead of the dispatcher; events that it has seen are then
// skipped. A watcher whose query the dispatcher has no room for stays with its replayer,
// level with the dispatcher: see wait.
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

// park moves a live watcher from the dispatcher to a replayer. unsent is the number of
// events that begin counted as sent but were not. park returns false if the watcher is
// closed.
func (r *registry) park(p *replayer, unsent uint64) bool {
	w := p.watcher
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.is(closed) {
		return false
	}
	if p.position() < w.position { // it went live ahead of the dispatcher
		p.next.Store(uint64(w.position))
		p.at.Store(uint64(w.position))
	}
	w.position = p.position()
	w.sent.Add(-unsent)
	r.becomeParked(w, p)
	return true
}

// expel ends the watcher of p, even in the middle of a blocked send, unless it has gone live
// or has ended otherwise. The replayer releases its snapshot and events at once, and still
// has to send the error, which is failure if that is not nil; see conclude.
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

// fail ends the watcher of p, if it is level, with a failure of storage. fail returns true if
// the watcher was live: p is then its replayer, and must conclude.
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

// end closes w, from any goroutine and any number of times.
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

// becomeLive returns false if the dispatcher has no room for the query.
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
	p.owes.Store(0) // a bookmark that was due before
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
