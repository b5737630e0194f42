// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/internal/rounds"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// batch is how many events are read from the window at a time.
const batch = 128

// dispatcher follows the window with a cursor of its own and feeds the live watchers, on
// one goroutine, the caller of Fanout.Run. The feed never waits for it: if events were
// handed over through a channel, the feed would wait as soon as the channel is full.
type dispatcher struct {
	state    *watchcache.State
	registry *registry
	convert  *converter
	clock    clock.WithTicker
	time     timeline.Timeline
	metrics  *metrics.Resource
	warn     func(kind, message string, err error, remedy string)
	// endNow asks storage for the end of the revision that is under way.
	endNow func()
	// doubtful is Config.Doubtful.
	doubtful func() bool
	// park has a live watcher brought up to date from a position: see replays.park.
	park func(w *watcher, position watchcache.Position, unsent uint64)
	// failLater ends a live watcher with a failure once there is room for it.
	failLater func(w *watcher, failure watch.Event)
	// measure is Config.Measure.
	measure func()
	// supervise looks at the watchers that catch up, without waiting for it.
	supervise func()

	wake chan struct{}
	// failure is the error that ends watchers that are live, or become so; nil if
	// there is none.
	failure atomic.Pointer[storageFailure]
	// everyone is closed once all watchers were sent a bookmark for Fanout.Bookmark.
	everyone atomic.Pointer[chan struct{}]
	cursor   watchcache.Position
	// last is the resourceVersion of the last dispatched event, and through the one up to
	// which everything was dispatched, below last while more events of its revision may come.
	last, through uint64
	// late: bookmarks are due and wait for the end of a revision.
	late   atomic.Bool
	budget timeBudget
	// limits say when rounds have several events; matched is how many watchers the events of
	// the last round were for, on average.
	limits  rounds.Limits
	matched int

	// Scratch, so that an event costs no allocation here. The round is given up once a second.
	round  *round
	events [batch]*watchcache.Event
	marked []*watcher
}

// wakeUp wakes the dispatcher up for new events. It never blocks.
func (d *dispatcher) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default: // the dispatcher is going to look anyway
	}
}

// revisionEnds wakes the dispatcher up if bookmarks have waited for the end of a
// revision. It never blocks.
func (d *dispatcher) revisionEnds() {
	if d.late.Load() {
		d.wakeUp()
	}
}

// storageFailure is an error of storage that ends watchers.
type storageFailure struct {
	event watch.Event
	// sent: the watchers that were live when it began have received it. over: the
	// state follows the storage again.
	sent, over atomic.Bool
}

// fail is Fanout.Fail.
func (d *dispatcher) fail(failure watch.Event) {
	d.failure.Store(&storageFailure{event: failure})
	d.wakeUp()
}

// follow is Fanout.Follow.
func (d *dispatcher) follow() {
	failure := d.failure.Load()
	if failure == nil {
		return
	}
	failure.over.Store(true)
	if failure.sent.Load() {
		d.failure.CompareAndSwap(failure, nil)
	}
}

// sendFailures sends the failure, if there is one, to the live watchers.
func (d *dispatcher) sendFailures() {
	failure := d.failure.Load()
	if failure == nil {
		return
	}
	if !failure.over.Load() || !failure.sent.Load() {
		d.sendFailure(failure.event)
	}
	failure.sent.Store(true)
	if failure.over.Load() {
		d.failure.CompareAndSwap(failure, nil)
	}
}

// dispatchEvents runs until the context is done.
func (d *dispatcher) dispatchEvents(ctx context.Context) {
	d.budget.filled = d.clock.Now()
	ticker := d.clock.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if d.advance() {
			select { // there may be more: only look whether it is time
			case <-ticker.C():
				d.tick()
			case <-ctx.Done():
				return
			default:
			}
			continue
		}
		d.sendFailures()
		if done := d.everyone.Swap(nil); done != nil {
			if !d.doubtful() {
				d.send(d.registry.bookmarksOfAll(d.marked[:0]))
			}
			close(*done)
		}
		select {
		case <-d.wake:
		case <-ticker.C():
			d.tick()
		case <-ctx.Done():
			return
		}
	}
}

// advance dispatches the next events and returns whether there were any.
func (d *dispatcher) advance() bool {
	n, through, err := d.state.Since(d.cursor, d.events[:])
	if err != nil {
		// A failure that explains the gap is sent first.
		d.sendFailures()
		d.skip()
		return true
	}
	d.dispatchBatch(d.events[:n])
	d.registry.dispatched(through)
	d.through = through
	if n > 0 {
		d.last = d.events[n-1].RV
	}
	if d.late.Load() && through >= d.last {
		d.sendBookmarks(d.time.Now())
	}
	if n == 0 {
		return false
	}
	d.cursor += watchcache.Position(n)
	d.state.Dispatched(d.cursor)
	clear(d.events[:n])
	return true
}

// dispatchBatch dispatches events and records the duration.
func (d *dispatcher) dispatchBatch(events []*watchcache.Event) {
	if len(events) == 0 {
		return
	}
	begun := d.time.Now()
	together := d.inRounds(len(events))
	for rest := events; len(rest) > 0; {
		n := 1
		if together && d.matched >= d.limits.Watchers {
			n = min(len(rest), d.limits.Events)
		}
		d.dispatchRound(rest[:n])
		rest = rest[n:]
	}
	ended := d.time.Now()
	d.metrics.StageTook(metrics.StageQueue, begun-time.Duration(events[0].Received))
	d.metrics.StageTook(metrics.StageDispatch, (ended-begun)/time.Duration(len(events)))
	for _, e := range events {
		d.metrics.DispatchLag(ended - time.Duration(e.Received))
	}
}

// skip goes on at the oldest event of the window, because the one at the cursor is gone.
// If the state was listed again, the live watchers end. If the window has reached its
// ceiling, they are parked where they are, and get a 410.
func (d *dispatcher) skip() {
	stats, lost := d.state.Stats(), d.cursor
	d.cursor, d.last, d.through = stats.Oldest, 0, 0
	d.state.Dispatched(d.cursor)
	behind := d.registry.restart(d.cursor)
	if lost >= stats.Start {
		d.warn("ceiling", "The window has reached its ceiling before its events were dispatched. The watch cache ends the watchers that miss some",
			fmt.Errorf("%d events were not dispatched to %d watchers", d.cursor-lost, len(behind)),
			"give the server more CPU, or a larger window; clients list and watch again")
	}
	for _, w := range behind {
		if lost < stats.Start {
			d.registry.end(w, metrics.EndRelist)
		} else {
			d.park(w, lost, 0)
		}
	}
}

// tick does the work of every second.
func (d *dispatcher) tick() {
	now := d.time.Now()
	d.round = nil
	d.metrics.WindowCut(d.state.Trim(int64(now)).Cut)
	d.measure()
	d.advance() // a report of progress since the last event is news for bookmarks
	d.supervise()
	live, _ := d.registry.counts()
	d.metrics.SetWatchers(metrics.WatcherLive, live)
	if d.through < d.last && !d.late.Swap(true) {
		// In the middle of a revision few watchers could get a bookmark. The end
		// of the revision is likely to come soon, or has come since the dispatcher
		// looked; if not, the next tick sends the bookmarks.
		d.endNow()
		d.wakeUp()
		return
	}
	d.sendBookmarks(now)
}

// sendBookmarks sends a bookmark to each live watcher that is due one and has
// room for it and nothing newer; the others are asked again an interval later.
func (d *dispatcher) sendBookmarks(now time.Duration) {
	d.late.Store(false)
	if d.doubtful() {
		return // they stay due
	}
	d.send(d.registry.bookmarksDue(now, d.marked[:0]))
}

// send sends a bookmark at rv to watchers that are not past it, and ends the sending that
// bookmarksDue or bookmarksOfAll has begun.
func (d *dispatcher) send(due []*watcher, rv uint64) {
	for _, w := range due {
		if w.isPast(rv) {
			continue
		}
		event, err := d.convert.bookmark(rv, false)
		if err != nil {
			d.warn("bookmark", "A bookmark could not be made. The watch cache leaves it out", err, remedyType)
			break
		}
		select {
		case w.result <- event:
			w.delivered.bookmark(rv)
		default:
		}
	}
	d.registry.finish()
	clear(due)
	d.marked = due[:0]
}

// sendFailure ends all live watchers with the failure, each with a copy of its own, because
// encoders write into it. A watcher without room receives it once there is some.
func (d *dispatcher) sendFailure(failure watch.Event) {
	live := d.registry.beginAll(d.marked[:0])
	for _, w := range live {
		select {
		case w.result <- watch.Event{Type: failure.Type, Object: failure.Object.DeepCopyObject()}:
			d.registry.end(w, metrics.EndFailed)
		default:
			d.failLater(w, failure)
		}
	}
	d.registry.finish()
	clear(live)
	d.marked = live[:0]
}
