// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
)

// timeBudget is how long the dispatcher may still wait for watchers that are
// not ready. The budget refills evenly, to perSecond within a second.
type timeBudget struct {
	perSecond time.Duration
	left      time.Duration
	filled    time.Time
}

func newTimeBudget(perSecond time.Duration, now time.Time) timeBudget {
	return timeBudget{perSecond: perSecond, left: perSecond, filled: now}
}

// available returns the time left at now; 0 or less if none.
func (b *timeBudget) available(now time.Time) time.Duration {
	if b.perSecond <= 0 {
		return 0
	}
	elapsed := min(now.Sub(b.filled), time.Second)
	b.left = min(b.perSecond, b.left+time.Duration(float64(b.perSecond)*elapsed.Seconds()))
	b.filled = now
	return b.left
}

// spend subtracts d, which may exceed the time left when a timer is late.
func (b *timeBudget) spend(d time.Duration) { b.left -= d }

// wait is the dispatcher waiting for watchers that are not ready, one after the
// other, for no longer than the time budget has left when it begins.
type wait struct {
	d     *dispatcher
	start time.Time
	timer clock.Timer // nil if there is no time
	// over: the time is over.
	over bool
}

// beginWait begins to wait. The caller ends the wait.
func (d *dispatcher) beginWait() wait {
	w := wait{d: d, start: d.clock.Now(), over: true}
	if available := d.budget.available(w.start); available > 0 {
		w.timer, w.over = d.clock.NewTimer(available), false
	}
	return w
}

// send sends an event to a watcher, and returns false if the watcher is not ready
// while there is time.
func (w *wait) send(to *watcher, event watch.Event) bool {
	if !w.over {
		select {
		case to.result <- event:
			return true
		case <-w.timer.C():
			w.over = true
		}
	}
	select {
	case to.result <- event:
		return true
	default:
		return false
	}
}

// end takes the time that was spent off the budget.
func (w *wait) end() {
	if w.timer != nil {
		w.timer.Stop()
		w.d.budget.spend(w.d.clock.Since(w.start))
	}
}
