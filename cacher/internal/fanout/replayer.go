// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"runtime"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// replayer brings one watcher up to date: from a snapshot, from a position in
// the window, or both, until it is level with the dispatcher and goes live. The
// replayer sends with nothing locked.
//
// A new watcher's replayer is a goroutine, started when the watcher begins, and so are
// the first ones of parked watchers; the owner of the tasks awaits it. Such a goroutine
// ends when the watcher goes live or ends. A goroutine that meets a full channel in the
// window waits for room, if it is one of the first that do; the supervisor may end it
// meanwhile. All others end there, with the position noted, and the poller resumes them
// when there is room. The place in a snapshot is on the stack: initial events are sent
// with blocking sends.
type replayer struct {
	*replays
	watcher *watcher
	quit    chan struct{}
	// begins: the watcher has not been live yet.
	begins bool
	// snapshot has the initial events, and is nil once they begin to be sent.
	// mark is the snapshot's.
	snapshot *watchcache.Snapshot
	mark     watchcache.Mark
	// failure is the error that the client is to be told, nil if there is none.
	failure *apierrors.StatusError
	// own: the replayer is a goroutine of its own that may block, and counts: see
	// poller.take. shared: the replayer is not, for it has been polled.
	own, shared bool
	// parked describes the watcher as it was when it was parked, until that is told.
	parked *row
	// rarest is what a replayer that is far behind looks its events up by.
	rarest match.Equality

	// verdict is closed when the supervisor, or the goroutine itself, has
	// expelled the watcher, for the reason.
	verdict chan struct{}
	reason  metrics.EndReason

	// Written by the goroutine and read by the supervisor: the position after
	// the events that the goroutine has at hand, the position of the one that it
	// looks at, how many it has sent, and whether it sends initial events.
	next    atomic.Uint64
	at      atomic.Uint64
	taken   atomic.Uint64
	initial atomic.Bool

	// Owned by the supervisor: where the replayer is in its list, since when
	// ParkedTimeout counts, and when the replayer has last come further, as far
	// as the supervisor's looks can tell.
	slot         int
	since, moved time.Duration
	progress     uint64

	// Guarded by registry.mu: the list of the poller that the replayer is in, and where;
	// nil while a goroutine has the replayer.
	list  *pollList
	place int
}

// replays has the parts of a Fanout that replayers work with.
type replays struct {
	state      *watchcache.State
	indexes    *match.Indexes
	lookback   *lookback
	registry   *registry
	supervisor *supervisor
	poller     *poller
	convert    *converter
	metrics    *metrics.Resource
	tasks      *tasks.Group
	warn       func(kind, message string, err error, remedy string)
}

// park takes a live watcher from the dispatcher, and starts to bring it up to date
// from a position. For unsent see registry.park. park does nothing if the watcher
// has ended.
func (r *replays) park(w *watcher, position watchcache.Position, unsent uint64) {
	replayer := r.newReplayer(w, make(chan struct{}), position)
	own := r.poller.take()
	replayer.own = own
	r.supervisor.add(replayer) // whoever ends the watcher takes it out again
	start, wake, ok := r.registry.park(replayer, unsent)
	if !ok {
		r.supervisor.remove(replayer)
		replayer.giveBack()
		return
	}
	r.metrics.Parked()
	if !own { // somebody else may have the replayer by now
		r.poller.call(start, wake)
		return
	}
	if !r.tasks.Run(replayer.resumes) {
		// The cache is stopping. The watcher ends here, where nothing else sends
		// to it.
		r.registry.end(w, metrics.EndShutdown)
		r.supervisor.remove(replayer)
		close(w.result)
	}
}

// newReplayer returns a replayer that is to bring w up to date from a position.
func (r *replays) newReplayer(w *watcher, quit chan struct{}, position watchcache.Position) *replayer {
	p := &replayer{replays: r, watcher: w, quit: quit, verdict: make(chan struct{}), slot: -1}
	p.next.Store(uint64(position))
	p.at.Store(uint64(position))
	return p
}

// position returns the position of the next event to read from the window.
func (r *replayer) position() watchcache.Position { return watchcache.Position(r.next.Load()) }

// resumes goes on where the watcher is: it was parked, or has room again. resumes tells
// of the parking, so that the dispatcher never waits for a log.
func (r *replayer) resumes() {
	parked := r.parked
	r.parked = nil
	switch {
	case r.ended():
		r.conclude()
		return
	case parked != nil:
		r.registry.tell(report{row: *parked})
	}
	r.catchUp()
}

// catchUp replays the window until the dispatcher or the poller has the watcher's
// channel, or the watcher has ended and the channel is closed.
func (r *replayer) catchUp() {
	switch r.replay() {
	case level:
		r.supervisor.remove(r)
		r.giveBack()
		if !r.begins {
			r.metrics.Resumed()
		}
	case full:
		if !r.poller.poll(r, false) {
			r.conclude()
		}
	case over:
		r.conclude()
	}
}

// giveBack gives back the right to a goroutine.
func (r *replayer) giveBack() {
	if r.own {
		r.own = false
		r.poller.give()
	}
}

// stays reports whether the replayer may send: mostly there is room in the channel, or
// the replayer is one of the first that wait for some.
func (r *replayer) stays() bool {
	result := r.watcher.result
	if len(result) < cap(result) || r.own {
		return true
	}
	if r.shared {
		if r.poller.limits.Yield {
			runtime.Gosched() // a client that reads has room again
		}
		return len(result) < cap(result)
	}
	r.own = r.poller.take()
	return r.own
}

// send returns false if the watcher has ended.
func (r *replayer) send(event watch.Event) bool {
	if r.ended() {
		return false
	}
	select { // mostly there is room, and this costs a third of the other one
	case r.watcher.result <- event:
		r.taken.Add(1)
		return true
	default:
	}
	select {
	case r.watcher.result <- event:
		r.taken.Add(1)
		return true
	case <-r.quit:
	case <-r.verdict:
	}
	return false
}

func (r *replayer) ended() bool {
	select {
	case <-r.quit:
		return true
	case <-r.verdict:
		return true
	default:
		return false
	}
}
