// SPDX-License-Identifier: Apache-2.0

package fanout

import (
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
// replayer sends with blocking sends, and with nothing locked. Each replayer is
// one goroutine, started when the watcher begins or is parked, and ended when
// the watcher goes live or ends; the owner of the tasks awaits it. The
// supervisor may end it while it is blocked.
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
}

// replays has the parts of a Fanout that replayers work with.
type replays struct {
	state      *watchcache.State
	indexes    *match.Indexes
	lookback   *lookback
	registry   *registry
	supervisor *supervisor
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
	parked, ok := r.registry.park(replayer, unsent)
	if !ok {
		return
	}
	r.metrics.Parked()
	if !r.tasks.Run(func() { replayer.run(parked) }) {
		// The cache is stopping. The watcher ends here, where nothing else sends
		// to it.
		r.registry.end(w, metrics.EndShutdown)
		close(w.result)
	}
}

// newReplayer returns a replayer that is to bring w up to date from a position.
func (r *replays) newReplayer(w *watcher, quit chan struct{}, position watchcache.Position) *replayer {
	p := &replayer{replays: r, watcher: w, quit: quit, verdict: make(chan struct{})}
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

// run replays the window for a watcher that was parked as described. run hands the
// watcher's channel over to the dispatcher, or closes it. run tells of the parking,
// so that the dispatcher never waits for a log.
func (r *replayer) run(parked row) {
	r.supervisor.add(r)
	if !r.ended() {
		r.registry.tell(report{row: parked})
	}
	live := r.replay()
	r.supervisor.remove(r)
	if !live {
		r.conclude()
		return
	}
	r.metrics.Resumed()
}

// start is run for a new watcher: the initial events come first, if there is a
// snapshot, then their end, if the client asked for it, then the window.
func (r *replayer) start(endBookmark bool, initialized func(InitialEvents)) {
	r.supervisor.add(r)
	begun, initial := true, InitialEvents{}
	if r.snapshot != nil {
		initial, begun = r.initialEvents(endBookmark)
	}
	initialized(initial)
	live := begun && r.replay()
	r.supervisor.remove(r)
	if !live {
		r.conclude()
	}
}

// conclude ends a watcher that does not go live and closes its channel. Nothing
// is kept for the watcher any more but the events in the channel. An error that
// the client is to be told waits until the client reads, or is gone: a client
// must not take the end of its channel for the end of the initial events.
func (r *replayer) conclude() {
	select { // one of them is closed, or about to be
	case <-r.quit:
	case <-r.verdict:
		if failure := r.lastWords(); failure != nil {
			status := failure.Status()
			select {
			case r.watcher.result <- watch.Event{Type: watch.Error, Object: &status}:
			case <-r.quit:
			}
		}
		r.registry.end(r.watcher, r.reason)
	}
	close(r.watcher.result)
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
	if r.registry.expel(r.watcher, r.quit, reason) {
		r.reason = reason
		close(r.verdict)
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

// replay sends what the window has from the watcher's position on. replay
// returns true once the dispatcher feeds the watcher, and false if it has
// ended.
func (r *replayer) replay() bool {
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
					return r.fail(apierrors.NewResourceExpired("the watch fell behind the events that are kept: " + err.Error()))
				}
				continue
			}
			to = position + watchcache.Position(n)
		}
		r.next.Store(uint64(to))
		if r.begins {
			r.metrics.Processed(n)
		}
		for _, e := range events[:n] {
			r.at.Store(uint64(e.Position))
			if !r.event(e) {
				return false
			}
		}
		r.at.Store(r.next.Load())
		clear(events[:n])
		if to == position && r.registry.goLive(r.watcher, position) {
			return true
		}
		if n == 0 && r.ended() {
			return false
		}
	}
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
func (r *replayer) event(e *watchcache.Event) bool {
	if e.RV <= r.watcher.after {
		return true
	}
	o := r.watcher.group.Outcome(e, false)
	if o == match.Unaffected {
		return !r.ended()
	}
	if !r.send(r.convert.replayed(e, o)) {
		return false
	}
	r.watcher.delivered.event(e.RV)
	r.metrics.Delivered(1)
	return true
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
