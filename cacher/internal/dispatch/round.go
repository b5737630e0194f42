// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// round is one or more events for the live watchers they affect. Each watcher is sent all of its
// events before the next watcher.
//
// A client waiting for an event wakes up at the first one. If another core is free, it takes this
// one and waits again, so each event costs each client a wake-up. In a round of several it finds
// the others at the same time.
type round struct {
	events []*watchcache.Event
	// groups are those affected by the events, at index Group.Slot.
	groups []groupSteps
	turns  []turn
	// made holds the watch events, by event and outcome.
	made [][match.Outcomes]watch.Event
	// candidates, evaluated and matched are the arguments of metrics.Resource.Dispatched.
	candidates, evaluated, matched int
}

type groupSteps struct {
	group *match.Group[*watcher]
	steps []step
}

// step is an event, by its index in the round, and its outcome for a group.
type step struct {
	event   int
	outcome match.Outcome
}

// turn is a watcher's unsent events, i.e. the steps of its group from next on. It is small, because
// there may be one per watcher.
type turn struct {
	watcher     *watcher
	group, next int32
}

func (r *round) left(t *turn) []step { return r.groups[t.group].steps[t.next:] }

// inRounds reports whether to send queued events in rounds of several. On one core no client runs
// while the dispatcher sends, so clients find several anyway.
func (f *Fanout) inRounds(queued int) bool {
	return queued >= f.limits.Queued && f.limits.Events > 1 && (f.limits.OneCore || runtime.GOMAXPROCS(0) > 1)
}

func (f *Fanout) dispatchRound(events []*watchcache.Event) {
	if f.round == nil {
		f.round = &round{made: make([][match.Outcomes]watch.Event, max(1, f.limits.Events))}
	}
	r := f.round
	r.events = events
	f.registry.begin(r)
	f.Metrics.Dispatched(r.candidates, r.evaluated, r.matched)
	for range events[1:] {
		f.Metrics.Dispatched(0, 0, 0) // counted above
	}
	for _, s := range r.groups {
		for _, at := range s.steps {
			if event := &r.made[at.event][at.outcome]; event.Object == nil {
				kind, object := f.event(events[at.event], at.outcome)
				*event = watch.Event{Type: kind, Object: &dispatched{object: object}}
			}
		}
	}
	unsent := 0
	for i := range r.turns {
		unsent += r.offer(&r.turns[i])
	}
	f.Metrics.Delivered(r.matched - unsent)
	if unsent > 0 {
		f.waitForTurns(r)
	}
	f.registry.finish()
	f.matched = r.matched / len(events)
	r.reset()
}

// offer sends a turn's events while there is room, and returns the number of unsent ones.
func (r *round) offer(t *turn) int {
	steps := r.left(t)
	for i, at := range steps {
		select {
		case t.watcher.result <- r.made[at.event][at.outcome]:
			r.sent(t, at)
		default:
			return len(steps) - i
		}
	}
	return 0
}

func (r *round) sent(t *turn, at step) {
	t.watcher.delivered.event(r.events[at.event])
	t.next++
}

// waitForTurns waits for full channels for the rest of the budget, then parks their watchers at the
// first unsent event.
func (f *Fanout) waitForTurns(r *round) {
	begun := f.Clock.Now()
	var over <-chan time.Time // nil once the time is up
	if left := f.refill(begun); left > 0 {
		timer := f.Clock.NewTimer(left)
		over = timer.C()
		defer func() {
			timer.Stop()
			f.budget -= f.Clock.Since(begun) // may exceed left if the timer is late
		}()
	}
	for i := range r.turns {
		t := &r.turns[i]
		due := len(r.left(t))
		for over != nil && len(r.left(t)) > 0 {
			at := r.left(t)[0]
			select {
			case t.watcher.result <- r.made[at.event][at.outcome]:
				r.sent(t, at)
			case <-over:
				over = nil
			case <-f.Done:
				over = nil
			}
		}
		unsent := r.offer(t)
		f.Metrics.Delivered(due - unsent)
		if unsent > 0 {
			f.park(t.watcher, r.events[r.left(t)[0].event].Position, uint64(unsent))
		}
	}
}

func (r *round) reset() {
	clear(r.made[:len(r.events)])
	for i := range r.groups {
		r.groups[i].group = nil
	}
	clear(r.turns)
	r.events, r.groups, r.turns = nil, r.groups[:0], r.turns[:0]
	r.candidates, r.evaluated, r.matched = 0, 0, 0
}

// begin fills o with the turns of live watchers affected by its events. The send phase lasts until
// finish.
func (r *registry) begin(o *round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.sending = true
	r.moveLocked(o.events[len(o.events)-1].Position + 1)
	for i, e := range o.events {
		alike := match.Alike(e)
		r.mu.groups.Candidates(e, func(g *match.Group[*watcher]) {
			o.evaluated++
			o.candidates += len(g.Members)
			if outcome := g.Outcome(e, alike); outcome != match.Unaffected {
				s := o.stepsOf(g)
				s.steps = append(s.steps, step{event: i, outcome: outcome})
			}
		})
	}
	for i := range o.groups {
		s := &o.groups[i]
		for _, w := range s.group.Members {
			passed := o.passed(w, s.steps)
			if n := len(s.steps) - passed; n > 0 {
				w.sent.Add(uint64(n))
				o.matched += n
				o.turns = append(o.turns, turn{watcher: w, group: int32(i), next: int32(passed)})
			}
		}
	}
}

// stepsOf returns the steps of a group, and adds the group if missing.
func (r *round) stepsOf(g *match.Group[*watcher]) *groupSteps {
	if g.Slot >= len(r.groups) || r.groups[g.Slot].group != g {
		g.Slot = len(r.groups)
		if g.Slot == cap(r.groups) {
			r.groups = append(r.groups, groupSteps{})
		}
		r.groups = r.groups[:g.Slot+1]
		s := &r.groups[g.Slot]
		s.group, s.steps = g, s.steps[:0] // reuse an earlier round's memory
	}
	return &r.groups[g.Slot]
}

// passed returns the number of steps that w, maybe ahead of the dispatcher, skips.
func (r *round) passed(w *watcher, steps []step) (n int) {
	for ; n < len(steps); n++ {
		if e := r.events[steps[n].event]; e.RV > w.after && e.Position >= w.position {
			break
		}
	}
	return n
}

// refill returns the time left for slow watchers. The budget refills evenly, up to DispatchBudget
// within a second.
func (f *Fanout) refill(now time.Time) time.Duration {
	elapsed := min(now.Sub(f.refilled), time.Second)
	f.budget = min(f.DispatchBudget, f.budget+time.Duration(float64(f.DispatchBudget)*elapsed.Seconds()))
	f.refilled = now
	return f.budget
}
