// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"runtime"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// polls is the watchers that catch up without a goroutine: those whose channels were
// full, or that were parked when there were many. No goroutine sends to them, so that
// whichever goroutine ends one closes its channel. The registry's lock guards polls.
type polls struct {
	// tiers has those that wait for room. A watcher that has no room when it is looked
	// at goes to the next tier, which is looked at less often.
	tiers [pollTiers]pollTier
	// found has those that the poller is to bring further next, and serving those that
	// it is at.
	found, serving *pollList
	// running: there is a poller, which looks again at wake, 0 while it is at work.
	running bool
	wake    time.Duration
}

// Each tier is looked at a quarter as often as the tier before.
const (
	pollTiers  = 5
	pollFactor = 4
)

// pollTier is a pollList that is looked at every so often, and next at due.
type pollTier struct {
	pollList
	every, due time.Duration
}

// pollList is polled watchers in no order.
type pollList struct{ entries []polled }

// polled is a watcher that is polled. The channel is here so that a look at it is a
// look at nothing else.
type polled struct {
	result   chan watch.Event
	replayer *replayer
}

func newPolls(every time.Duration) (p polls) {
	p.found, p.serving = &pollList{}, &pollList{}
	for i := range p.tiers {
		p.tiers[i].every = every
		every *= pollFactor
	}
	return p
}

func (l *pollList) add(r *replayer) {
	r.shared, r.list, r.place = true, l, len(l.entries)
	l.entries = append(l.entries, polled{r.watcher.result, r})
}

// polled reports whether the watcher catches up and no goroutine has its replayer. The
// registry's lock guards that.
func (w *watcher) polled() bool { return w.replayer != nil && w.replayer.list != nil }

// unpoll takes a replayer out of its list. unpoll does nothing if it is in none.
func (r *replayer) unpoll() {
	l := r.list
	if l == nil {
		return
	}
	last := len(l.entries) - 1
	moved := l.entries[last]
	l.entries[r.place], moved.replayer.place = moved, r.place
	l.entries[last] = polled{}
	l.entries = l.entries[:last]
	if last == 0 {
		l.entries = nil // there may have been many
	}
	r.list = nil
}

// await adds a replayer to the first tier.
func (p *polls) await(r *replayer, now time.Duration) {
	p.tiers[0].take(r, now)
}

func (t *pollTier) take(r *replayer, now time.Duration) {
	if len(t.entries) == 0 {
		t.due = now + t.every
	}
	t.add(r)
}

// next returns when the poller is to look next; false if nobody is polled.
func (p *polls) next() (at time.Duration, some bool) {
	if len(p.found.entries)+len(p.serving.entries) > 0 {
		return 0, true
	}
	for i := range p.tiers {
		if t := &p.tiers[i]; len(t.entries) > 0 && (!some || t.due < at) {
			at, some = t.due, true
		}
	}
	return at, some
}

// calls reports whether a goroutine has to be started that is the poller, and whether
// the poller that there is has to be woken up.
func (p *polls) calls() (start, wake bool) {
	if !p.running {
		p.running, p.wake = true, 0
		return true, false
	}
	at, some := p.next()
	return false, some && at < p.wake
}

// poll has the poller look after the watcher of a replayer, whose goroutine is about to
// end. telling: the watcher has been expelled, and is still to be told why. From a poll
// that returns true on, the replayer is not the caller's any more. poll returns false if
// the watcher has ended.
func (r *registry) poll(p *replayer, telling bool) (start, wake, ok bool) {
	now := r.time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := p.watcher; w.ended || (w.expelled && !telling) {
		return false, false, false
	}
	r.mu.polls.await(p, now)
	start, wake = r.mu.polls.calls()
	return start, wake, true
}

// lookForRoom finds those that are due to be looked at and have room in their channels.
func (r *registry) lookForRoom(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := pollTiers - 1; i >= 0; i-- { // so that nobody is looked at twice
		if t := &r.mu.polls.tiers[i]; len(t.entries) > 0 && t.due <= now {
			t.due = now + t.every
			r.lookAtLocked(i, now)
		}
	}
}

// lookAtLocked looks at one tier, and gives up the lock now and then, so that no event
// waits for the whole of it.
func (r *registry) lookAtLocked(tier int, now time.Duration) {
	p := &r.mu.polls
	t := &p.tiers[tier]
	turn := 0
	for i := len(t.entries) - 1; i >= 0; i-- {
		if turn == rowsAtOnce {
			r.mu.Unlock()
			runtime.Gosched() // so that a goroutine that waits for the lock gets it
			r.mu.Lock()
			turn = 0
			if i = min(i, len(t.entries)-1); i < 0 {
				return
			}
		}
		turn++
		at := t.entries[i]
		switch {
		case len(at.result) < cap(at.result):
			at.replayer.unpoll()
			p.found.add(at.replayer)
		case tier+1 < pollTiers:
			at.replayer.unpoll()
			p.tiers[tier+1].take(at.replayer, now)
		}
	}
}

// serve begins to bring those further that were found, and returns how many there are.
// The last ones that were found must have been taken.
func (r *registry) serve() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.mu.polls
	if len(p.serving.entries) == 0 {
		p.found, p.serving = p.serving, p.found
	}
	return len(p.serving.entries)
}

// takeServed takes one of those that serve has begun with; it is the caller's from here
// on. takeServed returns nil if there is none.
func (r *registry) takeServed() *replayer {
	r.mu.Lock()
	defer r.mu.Unlock()
	entries := r.mu.polls.serving.entries
	if len(entries) == 0 {
		return nil
	}
	p := entries[len(entries)-1].replayer
	p.unpoll()
	return p
}

// pause returns until when the poller has nothing to do; false if it is to end, because
// nobody is polled.
func (r *registry) pause() (until time.Duration, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.mu.polls
	p.wake, p.running = p.next()
	return p.wake, p.running
}

// resumePolling notes that the poller is at work.
func (r *registry) resumePolling() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.polls.wake = 0
}
