// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	"runtime"
	"sync/atomic"

	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/internal/polling"
)

// poller brings the watchers further that catch up without a goroutine of their own.
// Go's channels tell nobody when there is room, so that the poller looks at them.
//
// The first watchers that are parked keep goroutines, which wait for room and lose no
// time: see has. The poller is one goroutine while there are others, started by what
// polls the first of them, and beside it at most limits.AtOnce-1 helpers, which bring
// watchers further and end; the owner of tasks awaits all of them.
type poller struct {
	registry *registry
	tasks    *tasks.Group
	clock    clock.WithTicker
	time     timeline.Timeline
	limits   polling.Limits
	// goroutines is how many parked watchers have one of their own, and helpers how
	// many helpers there are.
	goroutines, helpers atomic.Int64
	// woken wakes the poller up before its time.
	woken chan struct{}
}

// take reports whether a watcher may have a goroutine of its own, which give gives back.
func (p *poller) take() bool {
	if p.goroutines.Add(1) <= int64(p.limits.Goroutines) {
		return true
	}
	p.goroutines.Add(-1)
	return false
}

func (p *poller) give() { p.goroutines.Add(-1) }

// poll looks after a replayer from now on, whose goroutine is about to end. poll returns
// false if the watcher has ended. See registry.poll.
func (p *poller) poll(r *replayer, telling bool) bool {
	start, wake, ok := p.registry.poll(r, telling)
	p.call(start, wake)
	return ok
}

// call does what polls.calls wants.
func (p *poller) call(start, wake bool) {
	switch {
	case start:
		// If the cache is stopping, all watchers are ended, and their channels closed.
		p.tasks.Run(p.run)
	case wake:
		p.wakeUp()
	}
}

func (p *poller) wakeUp() {
	select {
	case p.woken <- struct{}{}:
	default: // the poller is going to look anyway
	}
}

// run is the poller's goroutine, which ends when nobody is polled.
func (p *poller) run() {
	for {
		p.registry.lookForRoom(p.time.Now())
		p.serve()
		until, some := p.registry.pause()
		if !some {
			return
		}
		if pause := until - p.time.Now(); pause > 0 {
			timer := p.clock.NewTimer(pause)
			select {
			case <-timer.C():
			case <-p.woken:
				timer.Stop()
			}
		}
		p.registry.resumePolling()
	}
}

// serve brings all further that were found, with helpers if there are several. serve
// returns once all of them have been taken.
func (p *poller) serve() {
	atOnce := p.limits.AtOnce
	if atOnce == 0 {
		atOnce = runtime.GOMAXPROCS(0)
	}
	for n := min(p.registry.serve(), atOnce); n > 1 && p.helpers.Load() < int64(atOnce-1); n-- {
		p.helpers.Add(1)
		if !p.tasks.Run(func() {
			p.serveRest()
			p.helpers.Add(-1)
		}) {
			p.helpers.Add(-1)
			break
		}
	}
	p.serveRest()
}

func (p *poller) serveRest() {
	for r := p.registry.takeServed(); r != nil; r = p.registry.takeServed() {
		r.resumes()
	}
}
