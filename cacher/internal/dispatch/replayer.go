// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
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
// A replayer is a goroutine, started when the watcher begins or is parked; the owner
// of the tasks awaits it. The goroutine ends when the watcher goes live or ends. It
// waits while the watcher's channel is full; the supervisor may end it meanwhile.
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
	// parked describes the watcher as it was when it was parked, until that is reported.
	parked *row
	// rarest is the equality by which a replayer that is far behind looks up its events.
	rarest match.Equality

	// verdict is closed when the supervisor, or the goroutine itself, has
	// expelled the watcher, for the reason.
	verdict chan struct{}
	reason  metrics.EndReason

	// Written by the goroutine and read by the supervisor: the position after the
	// goroutine's batch, the position of the current event, how many events were sent,
	// and whether they are initial ones.
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

// resumes is run for a watcher that was parked, and reports that: the dispatcher never
// waits for a log.
func (r *replayer) resumes() {
	if r.ended() {
		r.conclude()
		return
	}
	r.registry.tell(report{row: *r.parked})
	r.parked = nil
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
