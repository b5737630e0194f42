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
	"github.com/kube-watchcache/watchcache/cacher/internal/wire"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// replayBatch is how many events a watcher that catches up reads at a time.
const replayBatch = 32

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

// begin makes r the replayer of a new watcher, which is sent the snapshot first,
// if there is one.
func (r *replayer) begin(snapshot *watchcache.Snapshot) {
	r.begins = true
	if snapshot != nil {
		r.snapshot, r.mark = snapshot, snapshot.Mark()
		r.initial.Store(true)
	}
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

// start is run for a new watcher: the initial events come first, if there is a
// snapshot, then their end, if the client asked for it, then the window.
func (r *replayer) start(endBookmark bool, initialized func(InitialEvents)) {
	begun, initial := true, InitialEvents{}
	if r.snapshot != nil {
		initial, begun = r.initialEvents(endBookmark)
	}
	initialized(initial)
	if !begun {
		r.conclude()
		return
	}
	r.catchUp()
}

// conclude ends a watcher that does not go live and closes its channel. Nothing
// is kept for the watcher any more but the events in the channel. An error that
// the client is to be told waits until the client reads, or is gone: a client
// must not take the end of its channel for the end of the initial events. If many
// wait, the poller calls conclude again.
func (r *replayer) conclude() {
	r.supervisor.remove(r)
	select { // one of them is closed, or about to be
	case <-r.quit:
	case <-r.verdict:
		if r.failure = r.lastWords(); r.failure != nil {
			status := r.failure.Status()
			if !r.stays() && r.poller.poll(r, true) {
				return
			}
			select {
			case r.watcher.result <- watch.Event{Type: watch.Error, Object: &status}:
			case <-r.quit:
			}
		}
		r.registry.end(r.watcher, r.reason)
	}
	close(r.watcher.result)
	r.giveBack()
}

// lastWords returns the error for the client of an expelled watcher, nil if the
// client can go on from where it is.
func (r *replayer) lastWords() *apierrors.StatusError {
	switch {
	case r.failure != nil:
		return r.failure
	case r.reason == metrics.EndExpired:
		r.metrics.Expired()
		return apierrors.NewResourceExpired("the watch fell behind the events that are kept")
	case r.initial.Load():
		return apierrors.NewResourceExpired("the initial events of the watch were not read in time: list and watch again")
	}
	return nil
}

// expel ends the watcher, even in the middle of a blocked send, unless it has
// gone live or has ended otherwise. Its snapshot and events are let go at once;
// see conclude.
func (r *replayer) expel(reason metrics.EndReason) {
	expelled, polled := r.registry.expel(r.watcher, r.quit, reason)
	if !expelled {
		return
	}
	r.reason = reason
	close(r.verdict)
	if !polled {
		return
	}
	r.supervisor.remove(r)
	if reason != metrics.EndExpired {
		r.registry.end(r.watcher, reason) // there is nothing to tell, which would wait for room
	}
}

// initialEvents sends the snapshot's elements as ADDED. ok is false if the
// watcher has ended.
func (r *replayer) initialEvents(endBookmark bool) (initial InitialEvents, ok bool) {
	snapshot := r.snapshot
	r.snapshot = nil
	ok = true
	send := func(run *wire.Run) {
		if run == nil {
			return
		}
		for event := range r.convert.initial(run) {
			if ok = r.send(event); !ok {
				return
			}
			initial.Sent++
		}
	}
	scanned := r.indexes.Scan(snapshot, &r.watcher.group.Query, "", nil, func(e *watchcache.Element) bool {
		send(r.watcher.initial.Add(e))
		return ok && !r.ended()
	})
	if last := r.watcher.initial.End(); ok { // one that has ended holds no elements
		send(last)
	}
	initial.Index, initial.Evaluated = scanned.Index, scanned.Evaluated
	r.metrics.Initial(initial.Sent)
	r.metrics.Processed(initial.Evaluated)
	if ok && endBookmark {
		ok = r.initialEventsEnd(snapshot.RV())
	}
	if ok {
		r.initial.Store(false)
	}
	return initial, ok
}

func (r *replayer) initialEventsEnd(rv uint64) bool {
	event, err := r.convert.bookmark(rv, true)
	if err != nil {
		// Without it the client would wait for ever.
		r.warn("initial", "The end of initial events could not be marked. The watch cache ends the watch", err, remedyType)
		return r.fail(apierrors.NewInternalError(err))
	}
	if !r.send(event) {
		return false
	}
	r.watcher.delivered.bookmark(rv)
	return true
}

// standing is how a replayer stands with its watcher.
type standing uint8

const (
	behind standing = iota // it is to go on
	level                  // the dispatcher feeds the watcher
	over                   // the watcher has ended
	full                   // the watcher's channel is, and the replayer may not wait
)

// replay sends what the window has from the watcher's position on, and returns once it
// is not to go on.
func (r *replayer) replay() standing {
	var events [replayBatch]*watchcache.Event
	far := r.farBehind()
	for {
		position := r.position()
		n, to, found := 0, position, false
		if far {
			n, to, found = r.lookback.read(r.rarest, position, &events)
			far = found && n == len(events)
		}
		if !found {
			var err error
			n, _, err = r.state.Since(position, events[:])
			if err != nil {
				if err = r.resume(position); err != nil {
					r.metrics.Expired()
					r.fail(apierrors.NewResourceExpired("the watch fell behind the events that are kept: " + err.Error()))
					return over
				}
				continue
			}
			to = position + watchcache.Position(n)
		}
		r.next.Store(uint64(to))
		if now := r.events(events[:n]); now != behind {
			return now
		}
		r.at.Store(r.next.Load())
		clear(events[:n])
		if to == position && r.registry.goLive(r.watcher, position) {
			return level
		}
		if n == 0 && r.ended() {
			return over
		}
	}
}

// events sends some events of the window. Where the channel is full, and the replayer
// may not wait, its next event is noted.
func (r *replayer) events(events []*watchcache.Event) (now standing) {
	n := 0
	for ; n < len(events) && now == behind; n++ {
		e := events[n]
		r.at.Store(uint64(e.Position))
		if now = r.event(e); now == full {
			r.next.Store(uint64(e.Position))
		}
	}
	if now == full {
		n-- // the last one is looked at again
	}
	if r.begins {
		r.metrics.Processed(n)
	}
	return now
}

// resume goes on at the oldest event that there is, because the one at the position
// has left the window, if none that is for the watcher has left with it.
func (r *replayer) resume(from watchcache.Position) error {
	at, beyond, err := r.state.Resume(from, r.indexes.Slice(&r.watcher.group.Query))
	if err != nil {
		return err
	}
	r.next.Store(uint64(at))
	r.at.Store(uint64(at))
	if beyond {
		r.metrics.BeyondWindow()
	}
	return nil
}

// isWhole reports whether the window has all that the watcher is still to look at.
func (r *replayer) isWhole() bool {
	_, _, err := r.state.Resume(r.position(), r.indexes.Slice(&r.watcher.group.Query))
	return err == nil
}

// farBehind reports whether the replayer is to look up what may affect its watcher
// for a start, and by what.
func (r *replayer) farBehind() (far bool) {
	if r.state.Stats().Next < r.position()+farBehind {
		return false
	}
	r.rarest, far = r.indexes.Rarest(&r.watcher.group.Query)
	return far
}

// event sends one event, if it affects the watcher.
func (r *replayer) event(e *watchcache.Event) standing {
	if e.RV <= r.watcher.after {
		return behind
	}
	o := r.watcher.group.Outcome(e, false)
	switch {
	case o == match.Unaffected && r.ended():
		return over
	case o == match.Unaffected:
		return behind
	case !r.stays():
		return full
	case !r.send(r.convert.replayed(e, o)):
		return over
	}
	r.watcher.delivered.event(e.RV)
	r.metrics.Delivered(1)
	return behind
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

// fail expels the watcher with an error that its client can tell. fail returns
// false, for the watcher has ended.
func (r *replayer) fail(err *apierrors.StatusError) bool {
	r.failure = err
	r.expel(metrics.EndExpired)
	return false
}
