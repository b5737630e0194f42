// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"container/list"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// replayer brings one watcher up to date, from a snapshot, from a position in the window,
// or both, until it is level with the dispatcher and goes live. It is a goroutine, started
// when the watcher begins or is parked, and awaited by the owner of the tasks. It ends
// when the watcher goes live or ends, and sends with nothing locked; while the watcher's
// channel is full, the supervisor may end it. A watcher whose query the dispatcher has no
// room for keeps its replayer, which waits for events when it is level.
type replayer struct {
	*Fanout
	watcher *watcher
	// stop is closed when the watcher is ending or closed, gone when it is closed.
	stop, gone chan struct{}
	// snapshot has the initial events, and is nil once they begin to be sent.
	// mark is the snapshot's.
	snapshot *watchcache.Snapshot
	mark     watchcache.Mark

	// reason and failure are set before the watcher is ending, and not changed. failure is the
	// error for the client, nil if reason says enough.
	reason  metrics.EndReason
	failure *metav1.Status

	// wake has an element after turn or owes was set, which happens only while the watcher is
	// level. turn is true while the replayer may evaluate events: one of all may. owes is the
	// resourceVersion of a bookmark to be sent, 0 if there is none.
	wake chan struct{}
	turn atomic.Bool
	owes atomic.Uint64
	// place is where the replayer waits for its turn, nil if it does not; registry.mu guards it.
	place *list.Element

	// Written by the goroutine and read by the supervisor: the position after its batch, that
	// of the current event, and whether not all initial events were sent.
	next    atomic.Uint64
	at      atomic.Uint64
	scanned atomic.Uint64 // elements that were looked at for initial events
	initial atomic.Bool

	// Owned by the supervisor: when a look has last seen progress, and how much.
	moved    time.Duration
	progress uint64
}

// parkWatcher takes a live watcher from the dispatcher, and starts to bring it up to date
// from a position. For unsent see registry.park. parkWatcher does nothing if the watcher
// has ended.
func (f *Fanout) parkWatcher(w *watcher, position watchcache.Position, unsent uint64) {
	replayer := f.newReplayer(w, position)
	if !f.registry.park(replayer, unsent) {
		return
	}
	f.Metrics.Parked()
	replayer.run(replayer.catchUp)
}

// run starts the goroutine of a replayer. If the cache is stopping, the watcher ends here,
// where nothing else sends to it.
func (r *replayer) run(goroutine func()) {
	if !r.Tasks.Run(goroutine) {
		r.registry.end(r.watcher, metrics.EndShutdown)
		close(r.watcher.result)
	}
}

// newReplayer returns a replayer of w from a position.
func (f *Fanout) newReplayer(w *watcher, position watchcache.Position) *replayer {
	p := &replayer{Fanout: f, watcher: w, stop: make(chan struct{}), gone: make(chan struct{}), wake: make(chan struct{}, 1), moved: f.Time.Now()}
	p.next.Store(uint64(position))
	p.at.Store(uint64(position))
	return p
}

// position returns the position of the next event to read from the window.
func (r *replayer) position() watchcache.Position { return watchcache.Position(r.next.Load()) }

// start is run for a new watcher: the initial events come first, if there is a
// snapshot, then their end, if the client asked for it, then the window.
func (r *replayer) start(endBookmark bool, initialized func()) {
	begun := r.snapshot == nil || r.initialEvents(endBookmark)
	initialized()
	if !begun {
		r.conclude()
		return
	}
	r.catchUp()
}

// catchUp replays the window until the dispatcher has the watcher's channel, or the
// watcher has ended and the channel is closed.
func (r *replayer) catchUp() {
	begins := r.watcher.is(starting)
	switch {
	case !r.replay():
		r.conclude()
	case !begins:
		r.Metrics.Resumed()
	}
}

// send returns false if the watcher has ended.
func (r *replayer) send(event watch.Event) bool {
	if r.ended() {
		return false
	}
	select { // mostly there is room, and this costs a third of the other one
	case r.watcher.result <- event:
		r.watcher.sent.Add(1)
		return true
	default:
	}
	select {
	case r.watcher.result <- event:
		r.watcher.sent.Add(1)
		return true
	case <-r.stop:
	}
	return false
}

func (r *replayer) ended() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

// replayBatch is how many events a watcher that catches up reads at a time.
const replayBatch = 32

// farBehind is from how many events on a replayer reads those alone that may affect
// its watcher. Fewer are walked sooner than looked up.
const farBehind = 8 * replayBatch

// replay sends the window's events from the watcher's position on, until the watcher has
// caught up and is live. It returns false if the watcher has ended.
func (r *replayer) replay() (live bool) {
	var events [replayBatch]*watchcache.Event
	far := r.State.Stats().Next >= r.position()+farBehind
	for !r.ended() {
		position := r.position()
		n, to, found := 0, position, false
		if far {
			n, to, found = r.postings.Events(&r.watcher.group.Query, position, events[:])
			far = found && n == len(events)
		}
		if !found {
			var err error
			n, _, err = r.State.Since(position, events[:])
			if err != nil {
				if err = r.resume(position); err != nil {
					r.Metrics.Expired()
					return r.fail(apierrors.NewResourceExpired("the watch fell behind the events that are kept: " + err.Error()))
				}
				continue
			}
			to = position + watchcache.Position(n)
		}
		r.next.Store(uint64(to))
		if !r.sendAll(events[:n]) {
			return false
		}
		r.at.Store(r.next.Load())
		clear(events[:n])
		if to == position {
			r.worked()
			if r.registry.goLive(r.watcher, position) {
				return true
			}
			r.await()
		}
	}
	return false
}

// await waits for events if the watcher is level, or for its end, and sends bookmarks
// meanwhile.
func (r *replayer) await() {
	for waits := r.registry.wait(r); waits && !r.turn.Load(); {
		select {
		case <-r.wake:
			rv := r.owes.Load()
			if rv == 0 {
				continue
			}
			if event, err := r.bookmark(rv, false); err == nil && !r.watcher.isPast(rv) && !r.Doubtful() {
				select {
				case r.watcher.result <- event:
					r.watcher.delivered.bookmark(rv)
				default:
				}
			}
			r.owes.CompareAndSwap(rv, 0)
		case <-r.stop:
			return
		}
	}
}

// wakeUp has await look at turn and owes.
func (r *replayer) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // it is going to look
	}
}

// worked ends the replayer's turn, if it has one.
func (r *replayer) worked() {
	if r.turn.CompareAndSwap(true, false) {
		r.registry.worked()
	}
}

// sendAll sends the events that affect the watcher. It returns false if the watcher has
// ended.
func (r *replayer) sendAll(events []*watchcache.Event) bool {
	if r.watcher.is(starting) {
		r.Metrics.Processed(len(events))
	}
	var outcomes [replayBatch]match.Outcome
	r.watcher.group.Outcomes(outcomes[:], events, r.watcher.after, r.ended)
	r.worked()
	for i, e := range events {
		r.at.Store(uint64(e.Position))
		if outcomes[i] == match.Unaffected {
			if r.ended() {
				return false
			}
			continue
		}
		kind, object := r.event(e, outcomes[i])
		if !r.send(watch.Event{Type: kind, Object: &object}) {
			return false
		}
		r.watcher.delivered.event(e)
		r.Metrics.Delivered(1)
	}
	return true
}

// resume goes on at the oldest event that there is, because the one at the position
// has left the window, if none that is for the watcher has left with it.
func (r *replayer) resume(from watchcache.Position) error {
	at, beyond, err := r.State.Resume(from, r.Indexes.Interest(&r.watcher.group.Query))
	if err != nil {
		return err
	}
	r.next.Store(uint64(at))
	r.at.Store(uint64(at))
	if beyond {
		r.Metrics.BeyondWindow()
	}
	return nil
}

// canContinue reports whether the window has all that the watcher is still to look at.
func (r *replayer) canContinue() bool {
	_, _, err := r.State.Resume(r.position(), r.Indexes.Interest(&r.watcher.group.Query))
	return err == nil
}
