// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// batch is how many events are read from the window at a time.
const batch = 128

// dispatcher follows the window with a cursor of its own and feeds the live
// watchers. It is one goroutine, started by New, ended by Stop.
//
// It never waits for a watcher for longer than its time budget, and the feed
// never waits for it. Handing events over through a channel would do the
// second only until the channel is full.
type dispatcher struct {
	state    *watchcache.State
	registry *registry
	convert  *converter
	clock    clock.WithTicker
	metrics  *metrics.Resource
	// catchUp takes over a watcher that is parked at a position.
	catchUp func(w *watcher, quit chan struct{}, position watchcache.Position)
	// trimmed is told what aging has done to the window.
	trimmed func(watchcache.Applied)

	wake chan struct{}
	// failure is what the live watchers are to be told and ended with, nil if
	// nothing.
	failure atomic.Pointer[watch.Event]
	cursor  watchcache.Position
	budget  timeBudget

	// Scratch, so that an event costs no allocation here.
	events  [batch]*watchcache.Event
	to      []delivery
	blocked []delivery
	marked  []*watcher
}

// wakeUp tells that there are new events. It never blocks.
func (d *dispatcher) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default: // it is going to look anyway
	}
}

// fail ends the live watchers, once they have everything before it, with the
// error that the storage gives instead of the next event. It never blocks.
func (d *dispatcher) fail(failure watch.Event) {
	d.failure.Store(&failure)
	d.wakeUp()
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
		if failure := d.failure.Swap(nil); failure != nil {
			d.sendFailure(*failure)
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
		// The state was replaced: what is before the new window is gone.
		d.cursor = d.state.Stats().Oldest
		d.state.Dispatched(d.cursor)
		d.registry.restart(d.cursor)
		return true
	}
	for _, e := range d.events[:n] {
		d.dispatch(e)
	}
	d.registry.dispatched(through)
	if n == 0 {
		return false
	}
	d.cursor += watchcache.Position(n)
	d.state.Dispatched(d.cursor)
	clear(d.events[:n])
	return true
}

// dispatch brings one event to all live watchers that it affects.
func (d *dispatcher) dispatch(e *watchcache.Event) {
	to, candidates := d.registry.begin(e, d.to[:0])
	d.metrics.Candidates(candidates)
	var events [outcomes]watch.Event
	for i := range to {
		event := &events[to[i].outcome]
		if event.Object == nil {
			*event = d.convert.event(e, to[i].outcome)
		}
		select {
		case to[i].watcher.result <- *event:
			to[i].watcher.delivered.event(e.RV)
		default:
			d.blocked = append(d.blocked, to[i])
		}
	}
	d.metrics.Delivered(len(to) - len(d.blocked))
	if len(d.blocked) > 0 {
		d.waitFor(d.blocked, e, &events)
		clear(d.blocked)
		d.blocked = d.blocked[:0]
	}
	d.registry.finish()
	clear(to)
	d.to = to[:0]
}

// waitFor gives watchers with full channels the time that the budget has left,
// and parks those that are not ready then.
func (d *dispatcher) waitFor(blocked []delivery, e *watchcache.Event, events *[outcomes]watch.Event) {
	start := d.clock.Now()
	var late <-chan time.Time
	if available := d.budget.available(start); available > 0 {
		timer := d.clock.NewTimer(available)
		defer timer.Stop()
		late = timer.C()
	}
	waiting := late != nil
	for _, b := range blocked {
		if waiting {
			select {
			case b.watcher.result <- events[b.outcome]:
				b.watcher.delivered.event(e.RV)
				d.metrics.Delivered(1)
				continue
			case <-late:
				waiting = false
			}
		}
		select {
		case b.watcher.result <- events[b.outcome]:
			b.watcher.delivered.event(e.RV)
			d.metrics.Delivered(1)
		default:
			d.park(b.watcher, e.Position)
		}
	}
	if late != nil {
		d.budget.spend(d.clock.Since(start))
	}
}

func (d *dispatcher) park(w *watcher, position watchcache.Position) {
	quit, ok := d.registry.park(w, position)
	if !ok {
		return
	}
	d.metrics.Parked()
	d.catchUp(w, quit, position)
}

// tick is what is to be done every second.
func (d *dispatcher) tick() {
	now := d.clock.Now()
	d.trimmed(d.state.Trim(now.UnixNano()))
	d.metrics.SetWatchers(d.registry.counts())
	d.sendBookmarks(now)
}

// sendBookmarks sends a bookmark to each live watcher that is due one and has
// room for it; the others are asked again an interval later.
func (d *dispatcher) sendBookmarks(now time.Time) {
	due, rv := d.registry.bookmarksDue(now, d.marked[:0])
	for _, w := range due {
		event, err := d.convert.bookmark(rv, false)
		if err != nil {
			klog.ErrorS(err, "A bookmark could not be made", "resourceVersion", rv)
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

// sendFailure ends all live watchers, with the failure if they have room for
// it. Their clients resume, or list, as after any error of the storage's own
// watch.
func (d *dispatcher) sendFailure(failure watch.Event) {
	live := d.registry.beginAll(d.marked[:0])
	for _, w := range live {
		select {
		case w.result <- failure:
		default:
		}
		d.registry.end(w, endFailed)
	}
	d.registry.finish()
	clear(live)
	d.marked = live[:0]
}
