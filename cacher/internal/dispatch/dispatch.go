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

// batch is the number of events read from the window at a time.
const batch = 128

// WakeUp notifies the dispatcher of new events. It never blocks.
func (f *Fanout) WakeUp() {
	select {
	case f.wake <- struct{}{}:
	default: // the dispatcher will look anyway
	}
}

// RevisionEnds notifies the dispatcher that the events so far are complete, so bookmarks that wait
// for it can go. It never blocks.
func (f *Fanout) RevisionEnds() {
	if f.bookmarksWait.Load() {
		f.WakeUp()
	}
}

type storageFailure struct {
	status *metav1.Status
	// last is the id of the last watcher to end, 0 until ClearFailure.
	last atomic.Uint64
}

// Fail ends watchers, as soon as they are level, with the error event from storage until
// ClearFailure. It never blocks.
func (f *Fanout) Fail(failure watch.Event) {
	f.failing.Store(&storageFailure{status: failure.Object.(*metav1.Status)})
	f.WakeUp()
}

// ClearFailure undoes Fail. Watchers opened before the call still receive an unsent error.
func (f *Fanout) ClearFailure() {
	if failure := f.failing.Load(); failure != nil {
		failure.last.CompareAndSwap(0, max(1, f.registry.lastOpened()))
		f.WakeUp()
	}
}

func (f *Fanout) sendFailures() {
	failure := f.failing.Load()
	if failure == nil {
		return
	}
	opened := f.registry.lastOpened() // before last: later watchers may begin in a sound state
	last := failure.last.Load()
	over := last > 0
	if !over {
		last = opened
	}
	f.sendFailure(failure.status, last) // every time, because more watchers go live
	if over {
		f.failing.CompareAndSwap(failure, nil)
	}
}

// Run is the dispatcher. It follows the window with its own cursor instead of receiving events over
// a channel, because the feed must not wait for it. Call it once, in a goroutine. It returns when
// ctx is done.
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
			f.advance() // for events before the request
			if !f.Unverified() {
				f.sendBookmarks(f.registry.beginBookmarks(f.Time.Now(), math.MaxInt64, f.marked[:0]))
			}
			close(sent)
		case <-ctx.Done():
			return
		}
	}
}

// advance returns false if there are no events.
func (f *Fanout) advance() bool {
	n, through, err := f.State.Since(f.cursor, f.read[:])
	if err != nil {
		// Send a failure that explains the gap first.
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

// skip moves the cursor to the start of the window after eviction of the event at the cursor. If a
// relist evicted it, the live watchers that missed events end. If the window overflowed, they are
// parked where they were and get a 410 if an evicted event may be theirs.
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

func (f *Fanout) tick() {
	now := f.Time.Now()
	f.round = nil
	f.Metrics.WindowCut(f.State.Trim(int64(now)).Cut)
	f.advance() // bookmarks need the latest progress
	f.EverySecond()
	f.postings.Trim()
	count := f.registry.counts()
	f.supervisor.tick(count[starting] + count[parked])
	f.Metrics.SetWatchers(metrics.WatcherLive, count[live])
	if f.through < f.last && !f.bookmarksWait.Swap(true) {
		// Few watchers could get a bookmark within a revision, so wait for its end until the next
		// tick at most. It may have ended after the dispatcher looked.
		f.EndRevision()
		f.WakeUp()
		return
	}
	f.sendDueBookmarks(now)
}

// sendDueBookmarks sends the due bookmarks. A watcher without room in its channel gets its next
// bookmark an interval later.
func (f *Fanout) sendDueBookmarks(now time.Duration) {
	f.bookmarksWait.Store(false)
	if f.Unverified() {
		return // they stay due
	}
	f.sendBookmarks(f.registry.beginBookmarks(now, now, f.marked[:0]))
}

// sendBookmarks ends the send phase of beginBookmarks.
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

// sendFailure ends the level watchers with ids up to last. Replayers send the error.
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
