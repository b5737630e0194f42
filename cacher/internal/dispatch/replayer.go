// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// replayer brings one watcher up to date, from a snapshot, from a position in the window,
// or both, until it is level with the dispatcher and goes live. It is a goroutine, started
// when the watcher begins or is parked, and awaited by the owner of the tasks. It ends
// when the watcher goes live or ends, and sends with nothing locked; while the watcher's
// channel is full, the supervisor may end it.
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
	// failure is the error that the client must receive, nil if there is none.
	failure *apierrors.StatusError
	// rarest is the equality by which a replayer that is far behind looks up its events.
	rarest match.Equality

	// verdict is closed when the supervisor, or the goroutine itself, has
	// expelled the watcher, for the reason.
	verdict chan struct{}
	reason  metrics.EndReason

	// Written by the goroutine and read by the supervisor: the position after its batch, that
	// of the current event, how many events were sent, and whether they are initial ones.
	next    atomic.Uint64
	at      atomic.Uint64
	taken   atomic.Uint64
	initial atomic.Bool

	// Owned by the supervisor: where the replayer is in its list, and when a look has
	// last seen progress.
	slot     int
	moved    time.Duration
	progress uint64
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
	doubtful   func() bool // Config.Doubtful
}

// park takes a live watcher from the dispatcher, and starts to bring it up to date
// from a position. For unsent see registry.park. park does nothing if the watcher
// has ended.
func (r *replays) park(w *watcher, position watchcache.Position, unsent uint64) {
	replayer := r.newReplayer(w, make(chan struct{}), position)
	r.supervisor.add(replayer) // whoever ends the watcher takes it out again
	if !r.registry.park(replayer, unsent) {
		r.supervisor.remove(replayer)
		return
	}
	r.metrics.Parked()
	if !r.tasks.Run(replayer.resumes) {
		// The cache is stopping. The watcher ends here, where nothing else sends
		// to it.
		r.registry.end(w, metrics.EndShutdown)
		r.supervisor.remove(replayer)
		close(w.result)
	}
}

// failLater ends a live watcher with a failure of storage, which a goroutine sends once
// there is room in the watcher's channel. Meanwhile nothing is kept for the watcher.
func (r *replays) failLater(w *watcher, failure watch.Event) {
	replayer := r.newReplayer(w, make(chan struct{}), 0)
	if !errors.As(apierrors.FromObject(failure.Object.DeepCopyObject()), &replayer.failure) || !r.registry.park(replayer, 0) {
		r.registry.end(w, metrics.EndFailed)
		return
	}
	replayer.expel(metrics.EndFailed)
	if !r.tasks.Run(replayer.conclude) { // the cache is stopping
		r.registry.end(w, metrics.EndShutdown)
		close(w.result)
	}
}

// newReplayer returns a replayer of w from a position.
func (r *replays) newReplayer(w *watcher, quit chan struct{}, position watchcache.Position) *replayer {
	p := &replayer{replays: r, watcher: w, quit: quit, verdict: make(chan struct{}), slot: -1}
	p.next.Store(uint64(position))
	p.at.Store(uint64(position))
	return p
}

// position returns the position of the next event to read from the window.
func (r *replayer) position() watchcache.Position { return watchcache.Position(r.next.Load()) }

// resumes is run for a watcher that was parked.
func (r *replayer) resumes() {
	if r.ended() {
		r.conclude()
		return
	}
	r.catchUp()
}

// catchUp replays the window until the dispatcher has the watcher's channel, or the
// watcher has ended and the channel is closed.
func (r *replayer) catchUp() {
	if r.replay() == over {
		r.conclude()
		return
	}
	r.supervisor.remove(r)
	if !r.begins {
		r.metrics.Resumed()
	}
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

// replayBatch is how many events a watcher that catches up reads at a time.
const replayBatch = 32

// standing is how a replayer stands with its watcher.
type standing uint8

const (
	behind standing = iota // it is to go on
	level                  // the dispatcher feeds the watcher
	over                   // the watcher has ended
)

// replay sends the window's events from the watcher's position on, and returns when the
// watcher has caught up or must end.
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

// events sends some events of the window.
func (r *replayer) events(events []*watchcache.Event) (now standing) {
	n := 0
	for ; n < len(events) && now == behind; n++ {
		r.at.Store(uint64(events[n].Position))
		now = r.event(events[n])
	}
	if r.begins {
		r.metrics.Processed(n)
	}
	return now
}

// resume goes on at the oldest event that there is, because the one at the position
// has left the window, if none that is for the watcher has left with it.
func (r *replayer) resume(from watchcache.Position) error {
	at, beyond, err := r.state.Resume(from, r.indexes.Interest(&r.watcher.group.Query))
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
	_, _, err := r.state.Resume(r.position(), r.indexes.Interest(&r.watcher.group.Query))
	return err == nil
}

// farBehind reports whether the replayer should begin by looking up the events that may
// affect its watcher, and sets the equality to look up.
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
	case !r.send(r.convert.replayed(e, o)):
		return over
	}
	r.watcher.delivered.event(e)
	r.metrics.Delivered(1)
	return behind
}

// farBehind is from how many events on a replayer reads those alone that may affect
// its watcher. Fewer are walked sooner than looked up.
const farBehind = 8 * replayBatch

// lookback is the window as replayers read it that are far behind.
type lookback struct {
	state *watchcache.State
	// bytes is an estimate of the memory that is taken beside the window's.
	bytes atomic.Int64
	mu    struct {
		sync.Mutex
		postings *match.Postings
	}
}

func newLookback(indexes *match.Indexes, state *watchcache.State) *lookback {
	l := &lookback{state: state}
	l.mu.postings = match.NewPostings(indexes, state)
	return l
}

// read copies into events the next ones from a position on that may affect a query
// with the equality, and returns their number, and the position after all that it
// has passed. If ok is false, the caller must walk the window.
func (l *lookback) read(of match.Equality, from watchcache.Position, events *[replayBatch]*watchcache.Event) (n int, to watchcache.Position, ok bool) {
	var found [replayBatch]watchcache.Position
	l.mu.Lock()
	n, to, ok = l.mu.postings.Find(of, from, found[:])
	l.bytes.Store(l.mu.postings.Bytes())
	l.mu.Unlock()
	if !ok || l.state.Pick(from, found[:n], events[:]) != nil {
		return 0, 0, false // who walks the window finds out why
	}
	return n, to, true
}

// trim drops unused postings, unless the lock is taken: it does not wait.
func (l *lookback) trim() {
	if l.mu.TryLock() {
		l.mu.postings.Trim()
		l.bytes.Store(l.mu.postings.Bytes())
		l.mu.Unlock()
	}
}
