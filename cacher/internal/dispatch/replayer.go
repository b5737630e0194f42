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

// replayer is a goroutine that feeds a starting or parked watcher, from a snapshot, a position in
// the window, or both, until it is level with the dispatcher and goes live. If the dispatcher has
// no room for its query, the watcher keeps the replayer, which waits for events when level. A
// replayer sends with nothing locked; during a blocked send, the supervisor may end it.
type replayer struct {
	*Fanout
	watcher *watcher
	// stop is closed when the watcher is ending or closed, gone when it is closed.
	stop, gone chan struct{}
	// snapshot holds the initial events until we start to send them. mark is the snapshot's.
	snapshot *watchcache.Snapshot
	mark     watchcache.Mark

	// reason and failure are immutable once the watcher is ending. If failure is nil, finalError
	// makes the client's error from reason.
	reason  metrics.EndReason
	failure *metav1.Status

	// wake has an element after turn or owes was set. turn is true while the replayer may evaluate
	// events; workLocked sets it for a waiting replayer. owes is the resourceVersion of a bookmark
	// to send, or 0; it is set only while the watcher is level.
	wake chan struct{}
	turn atomic.Bool
	owes atomic.Uint64
	// place is the element in registry.mu.waiting, which that lock guards, or nil.
	place *list.Element

	// Written by the replayer, read by the supervisor: the position after the current batch, that
	// of the current event, and whether initial events are unsent.
	next    atomic.Uint64
	at      atomic.Uint64
	scanned atomic.Uint64 // elements evaluated for initial events
	initial atomic.Bool

	// Owned by the supervisor: the time and amount of the last observed progress.
	moved    time.Duration
	progress uint64
}

// parkWatcher moves a live watcher to a new replayer at position. For unsent see registry.park.
func (f *Fanout) parkWatcher(w *watcher, position watchcache.Position, unsent uint64) {
	replayer := f.newReplayer(w, position)
	if !f.registry.park(replayer, unsent) {
		return
	}
	f.Metrics.Parked()
	replayer.run(replayer.catchUp)
}

// run starts the goroutine, or closes the watcher if the cache is stopping, when no other goroutine
// sends to it.
func (r *replayer) run(goroutine func()) {
	if !r.Tasks.Run(goroutine) {
		r.registry.end(r.watcher, metrics.EndShutdown)
		close(r.watcher.result)
	}
}

func (f *Fanout) newReplayer(w *watcher, position watchcache.Position) *replayer {
	p := &replayer{Fanout: f, watcher: w, stop: make(chan struct{}), gone: make(chan struct{}), wake: make(chan struct{}, 1), moved: f.Time.Now()}
	p.next.Store(uint64(position))
	p.at.Store(uint64(position))
	return p
}

// position is that of the next event to read from the window.
func (r *replayer) position() watchcache.Position { return watchcache.Position(r.next.Load()) }

// start feeds a new watcher: initial events if it has a snapshot, their end bookmark if requested,
// then the window.
func (r *replayer) start(endBookmark bool, initialized func()) {
	begun := r.snapshot == nil || r.initialEvents(endBookmark)
	initialized()
	if !begun {
		r.conclude()
		return
	}
	r.catchUp()
}

// catchUp replays the window until the watcher is live or closed.
func (r *replayer) catchUp() {
	begins := r.watcher.is(starting)
	switch {
	case !r.replay():
		r.conclude()
	case !begins:
		r.Metrics.Resumed()
	}
}

// send returns false if the watcher ended.
func (r *replayer) send(event watch.Event) bool {
	if r.ended() {
		return false
	}
	select { // usually succeeds, at a third of the cost of the select below
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

const replayBatch = 32

// farBehind is the lag, in events, from which replayers look up their events in the postings
// instead of walking the window.
const farBehind = 8 * replayBatch

// replay returns false if the watcher ended before it went live.
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

// await blocks until the replayer gets its turn or the watcher ends, and sends bookmarks meanwhile.
// It returns at once if the watcher is not level.
func (r *replayer) await() {
	for waits := r.registry.wait(r); waits && !r.turn.Load(); {
		select {
		case <-r.wake:
			rv := r.owes.Load()
			if rv == 0 {
				continue
			}
			if event, err := r.bookmark(rv, false); err == nil && !r.watcher.isPast(rv) && !r.Unverified() {
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

func (r *replayer) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// worked ends the replayer's turn, if it has one.
func (r *replayer) worked() {
	if r.turn.CompareAndSwap(true, false) {
		r.registry.worked()
	}
}

// sendAll returns false if the watcher ended.
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

// resume moves from an evicted position to the start of the window. It fails if an evicted event
// may be the watcher's.
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

// canContinue reports whether resume would succeed.
func (r *replayer) canContinue() bool {
	_, _, err := r.State.Resume(r.position(), r.Indexes.Interest(&r.watcher.group.Query))
	return err == nil
}
