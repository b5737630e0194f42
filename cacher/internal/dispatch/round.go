// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// round is one or more events on their way to the live watchers that they affect: each
// watcher is sent all of its events before the next watcher is sent any.
//
// A client that waits for an event is woken up by the first one. If another core is
// free, the client runs at once, takes that one event and waits again, so that each
// event costs each client a wake-up. In a round of several the client finds the others
// as well.
type round struct {
	events []*watchcache.Event
	// shares are the groups that the events affect. A group's Slot is the index of its
	// share, if it has one.
	shares []share
	turns  []turn
	// made has the watch events, by event and outcome.
	made [][match.Outcomes]watch.Event
	// candidates, groups and matched are the counts for metrics.Resource.Dispatched.
	candidates, groups, matched int
}

// share holds the events that a group's members will receive.
type share struct {
	group *match.Group[*watcher]
	steps []step
}

// step is one of a round's events, by its index, and its outcome for a group.
type step struct {
	event   int
	outcome match.Outcome
}

// turn holds the events that a watcher has yet to receive, in order. The members of a
// group share the steps.
type turn struct {
	watcher *watcher
	steps   []step
}

// inRounds reports whether to send so many queued events in rounds of several.
// On one core nothing else runs while the dispatcher sends, so clients find several
// events anyway.
func (d *dispatcher) inRounds(queued int) bool {
	return queued >= d.limits.Queued && d.limits.Events > 1 && (d.limits.OneCore || runtime.GOMAXPROCS(0) > 1)
}

// dispatchRound brings events to all live watchers that they affect.
func (d *dispatcher) dispatchRound(events []*watchcache.Event) {
	if d.round == nil {
		d.round = &round{made: make([][match.Outcomes]watch.Event, max(1, d.limits.Events))}
	}
	r := d.round
	r.events = events
	d.registry.begin(r)
	d.metrics.Dispatched(r.candidates, r.groups, r.matched)
	for range events[1:] {
		d.metrics.Dispatched(0, 0, 0) // which the sums above have
	}
	for _, s := range r.shares {
		for _, at := range s.steps {
			if event := &r.made[at.event][at.outcome]; event.Object == nil {
				*event = d.convert.event(events[at.event], at.outcome)
			}
		}
	}
	unsent := 0
	for i := range r.turns {
		t := &r.turns[i]
		for len(t.steps) > 0 && r.offer(t) {
		}
		unsent += len(t.steps)
	}
	d.metrics.Delivered(r.matched - unsent)
	if unsent > 0 {
		d.waitForTurns(r)
	}
	d.registry.finish()
	d.matched = r.matched / len(events)
	r.reset()
}

// offer sends the next event of a turn, if the watcher has room for it.
func (r *round) offer(t *turn) bool {
	select {
	case t.watcher.result <- r.made[t.steps[0].event][t.steps[0].outcome]:
		r.sent(t)
		return true
	default:
		return false
	}
}

// sent notes that the next event of a turn was sent.
func (r *round) sent(t *turn) {
	t.watcher.delivered.event(r.events[t.steps[0].event])
	t.steps = t.steps[1:]
}

// waitForTurns gives watchers with full channels the time that the budget has left. A
// watcher that is not ready in time is parked at the first event that it was not sent.
func (d *dispatcher) waitForTurns(r *round) {
	wait := d.beginWait()
	for i := range r.turns {
		t := &r.turns[i]
		for len(t.steps) > 0 {
			at := t.steps[0]
			if !wait.send(t.watcher, r.made[at.event][at.outcome]) {
				d.park(t.watcher, r.events[at.event].Position, uint64(len(t.steps)))
				break
			}
			r.sent(t)
			d.metrics.Delivered(1)
		}
	}
	wait.end()
}

// reset keeps the memory for the next round, and nothing of this one.
func (r *round) reset() {
	clear(r.made[:len(r.events)])
	for i := range r.shares {
		r.shares[i].group = nil
	}
	clear(r.turns)
	r.events, r.shares, r.turns = nil, r.shares[:0], r.turns[:0]
	r.candidates, r.groups, r.matched = 0, 0, 0
}

// begin fills a round with the turns of all live watchers that its events affect. From here
// to finish the dispatcher is sending.
func (r *registry) begin(o *round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	r.mu.cursor = o.events[len(o.events)-1].Position + 1
	for i, e := range o.events {
		alike := match.Alike(e)
		r.mu.groups.Candidates(e, func(g *match.Group[*watcher]) {
			o.groups++
			o.candidates += len(g.Members)
			if outcome := g.Outcome(e, alike); outcome != match.Unaffected {
				s := o.share(g)
				s.steps = append(s.steps, step{event: i, outcome: outcome})
			}
		})
	}
	for _, s := range o.shares {
		for _, w := range s.group.Members {
			if steps := o.after(w, s.steps); len(steps) > 0 {
				w.sent += uint64(len(steps))
				o.matched += len(steps)
				o.turns = append(o.turns, turn{watcher: w, steps: steps})
			}
		}
	}
}

// share returns the share of a group, which is empty if there was none.
func (r *round) share(g *match.Group[*watcher]) *share {
	if g.Slot >= len(r.shares) || r.shares[g.Slot].group != g {
		g.Slot = len(r.shares)
		if g.Slot == cap(r.shares) {
			r.shares = append(r.shares, share{})
		}
		r.shares = r.shares[:g.Slot+1]
		s := &r.shares[g.Slot]
		s.group, s.steps = g, s.steps[:0] // which an earlier round has left
	}
	return &r.shares[g.Slot]
}

// after returns the steps that are still to come for a watcher, which may have gone
// live ahead of the dispatcher.
func (r *round) after(w *watcher, steps []step) []step {
	for len(steps) > 0 {
		if e := r.events[steps[0].event]; e.RV > w.after && e.Position >= w.position {
			break
		}
		steps = steps[1:]
	}
	return steps
}

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
