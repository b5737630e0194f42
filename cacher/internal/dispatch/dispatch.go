// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// batch is how many events are read from the window at a time.
const batch = 128

// WakeUp wakes the dispatcher up for new events. It never blocks.
func (f *Fanout) WakeUp() {
	select {
	case f.wake <- struct{}{}:
	default: // the dispatcher is going to look anyway
	}
}

// RevisionEnds notifies the dispatcher that the events so far are complete: bookmarks may
// have waited for that. It never blocks.
func (f *Fanout) RevisionEnds() {
	if f.bookmarksWait.Load() {
		f.WakeUp()
	}
}

// storageFailure is an error of storage that ends watchers.
type storageFailure struct {
	status *metav1.Status
	// last is the last watcher that the failure may end, 0 until the state follows the
	// storage again: later ones begin in a state without fault.
	last atomic.Uint64
}

// Fail ends the watchers, each once it is live and has everything before it,
// with the error event that storage sent instead of the next event, until ClearFailure
// is called. It never blocks.
func (f *Fanout) Fail(failure watch.Event) {
	f.failing.Store(&storageFailure{status: failure.Object.(*metav1.Status)})
	f.WakeUp()
}

// ClearFailure undoes Fail: the state follows the storage again. An error that was not sent
// yet still is, to the watchers of before.
func (f *Fanout) ClearFailure() {
	if failure := f.failing.Load(); failure != nil {
		failure.last.CompareAndSwap(0, max(1, f.registry.lastOpened()))
		f.WakeUp()
	}
}

// sendFailures ends the level watchers with the failure, if there is one.
func (f *Fanout) sendFailures() {
	failure := f.failing.Load()
	if failure == nil {
		return
	}
	opened := f.registry.lastOpened() // first: later watchers may begin in a state without fault
	last := failure.last.Load()
	over := last > 0
	if !over {
		last = opened
	}
	f.sendFailure(failure.status, last) // also to those that have gone live since the last time
	if over {
		f.failing.CompareAndSwap(failure, nil)
	}
}

// Run is the dispatcher: it follows the window with a cursor of its own and feeds the live
// watchers. The feed never waits for it: if events were handed over through a channel, the
// feed would wait as soon as the channel is full. The caller starts Run in a goroutine,
// once; it returns when the context is done.
func (f *Fanout) Run(ctx context.Context) {
	ticker := f.Clock.NewTicker(time.Second)
	defer ticker.Stop()
	more := make(chan struct{})
	close(more)
	for {
		next := more
		if !f.advance() {
			f.sendFailures()
			next = f.wake
		}
		select {
		case <-next:
		case <-ticker.C():
			f.tick()
		case sent := <-f.everyone:
			f.advance() // for events that came before the request
			if !f.Doubtful() {
				f.sendBookmarks(f.registry.beginBookmarks(f.Time.Now(), math.MaxInt64, f.marked[:0]))
			}
			close(sent)
		case <-ctx.Done():
			return
		}
	}
}

// advance dispatches the next events and returns whether there were any.
func (f *Fanout) advance() bool {
	n, through, err := f.State.Since(f.cursor, f.read[:])
	if err != nil {
		// A failure that explains the gap is sent first.
		f.sendFailures()
		f.skip()
		return true
	}
	f.dispatchBatch(f.read[:n])
	f.registry.dispatched(through)
	f.through = through
	if n > 0 {
		f.last = f.read[n-1].RV
	}
	if f.bookmarksWait.Load() && through >= f.last {
		f.sendDueBookmarks(f.Time.Now())
	}
	if n == 0 {
		return false
	}
	f.cursor += watchcache.Position(n)
	f.State.Dispatched(f.cursor)
	clear(f.read[:n])
	return true
}

// dispatchBatch dispatches events and records the duration.
func (f *Fanout) dispatchBatch(events []*watchcache.Event) {
	if len(events) == 0 {
		return
	}
	begun := f.Time.Now()
	together := f.inRounds(len(events))
	for rest := events; len(rest) > 0; {
		n := 1
		if together && f.matched >= f.limits.Watchers {
			n = min(len(rest), f.limits.Events)
		}
		f.dispatchRound(rest[:n])
		rest = rest[n:]
	}
	ended := f.Time.Now()
	f.Metrics.StageTook(metrics.StageQueue, begun-time.Duration(events[0].Received))
	f.Metrics.StageTook(metrics.StageDispatch, (ended-begun)/time.Duration(len(events)))
	for _, e := range events {
		f.Metrics.DispatchLag(ended - time.Duration(e.Received))
	}
}

// skip goes on at the oldest event of the window, because the one at the cursor is gone.
// If the state was listed again, the live watchers end. If the window has reached its
// ceiling, they are parked where they are, and get a 410 if one of the lost events may be for
// them.
func (f *Fanout) skip() {
	stats, lost := f.State.Stats(), f.cursor
	f.cursor, f.last, f.through = stats.Oldest, 0, 0
	f.State.Dispatched(f.cursor)
	behind := f.registry.restart(f.cursor)
	if lost >= stats.Start {
		f.Warn("ceiling", "The window has reached its ceiling before its events were dispatched. The watch cache ends the watchers that miss some",
			fmt.Errorf("%d events were not dispatched to %d watchers", f.cursor-lost, len(behind)),
			"give the server more CPU, or raise WindowBytes; clients list and watch again")
	}
	for _, w := range behind {
		if lost < stats.Start {
			f.registry.end(w, metrics.EndRelist)
		} else {
			f.park(w, lost, 0)
		}
	}
}

// tick does the work of every second.
func (f *Fanout) tick() {
	now := f.Time.Now()
	f.round = nil
	f.Metrics.WindowCut(f.State.Trim(int64(now)).Cut)
	f.advance() // a report of progress since the last event is news for bookmarks
	f.EverySecond()
	f.postings.Trim()
	count := f.registry.counts()
	f.supervisor.tick(count[starting] + count[parked])
	f.Metrics.SetWatchers(metrics.WatcherLive, count[live])
	if f.through < f.last && !f.bookmarksWait.Swap(true) {
		// In the middle of a revision few watchers could get a bookmark. The end
		// of the revision is likely to come soon, or has come since the dispatcher
		// looked; if not, the next tick sends the bookmarks.
		f.EndRevision()
		f.WakeUp()
		return
	}
	f.sendDueBookmarks(now)
}

// sendDueBookmarks sends a bookmark to each live watcher that is due one and has
// room for it and nothing newer; the others are tried again an interval later.
func (f *Fanout) sendDueBookmarks(now time.Duration) {
	f.bookmarksWait.Store(false)
	if f.Doubtful() {
		return // they stay due
	}
	f.sendBookmarks(f.registry.beginBookmarks(now, now, f.marked[:0]))
}

// sendBookmarks sends a bookmark at rv to watchers that are not past it, and ends the
// sending that beginBookmarks has begun.
func (f *Fanout) sendBookmarks(due []*watcher, rv uint64) {
	for _, w := range due {
		if w.isPast(rv) {
			continue
		}
		event, err := f.bookmark(rv, false)
		if err != nil {
			f.Warn("bookmark", "A bookmark could not be made. The watch cache leaves it out", err, remedyType)
			break
		}
		select {
		case w.result <- event:
			w.delivered.bookmark(rv)
		default:
		}
	}
	f.registry.finish()
	clear(due)
	f.marked = due[:0]
}

// sendFailure ends the watchers up to the last that have everything before the failure. Their
// replayers send it as soon as there is room.
func (f *Fanout) sendFailure(failure *metav1.Status, last uint64) {
	for _, w := range f.registry.level() {
		if w.id > last {
			continue
		}
		if p := f.newReplayer(w, f.cursor); f.registry.fail(p, failure) {
			p.run(p.conclude)
		}
	}
}
