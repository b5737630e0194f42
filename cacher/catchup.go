// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// replayBatch is how many events a watcher that catches up reads at a time.
const replayBatch = 32

// catchUp is one watcher catching up: from a snapshot, from a position in the
// window, or both, until it is level with the dispatcher and goes live. It
// sends with blocking sends, and with nothing locked. One goroutine, started
// when the watcher begins or is parked; it ends when the watcher goes live or
// ends, and Stop awaits it.
type catchUp struct {
	engine   *engine
	watcher  *watcher
	quit     <-chan struct{}
	position watchcache.Position
	// late, if not nil, is when the watcher has been parked for too long.
	late <-chan time.Time
}

// run replays the window for a parked watcher. It hands the watcher's channel
// over to the dispatcher, or closes it.
func (c *catchUp) run() {
	if limit := c.engine.config.ParkedTimeout; limit > 0 {
		timer := c.engine.config.Clock.NewTimer(limit)
		defer timer.Stop()
		c.late = timer.C()
	}
	if !c.replay() {
		close(c.watcher.result)
		return
	}
	c.engine.metrics.Resumed()
}

// start is run for a new watcher: first the initial events, if snapshot is not
// nil, then their end, if asked for, then the window.
func (c *catchUp) start(snapshot *watchcache.Snapshot, endBookmark bool, initialized func()) {
	begun := snapshot == nil || c.initialEvents(snapshot, endBookmark)
	initialized()
	if !begun || !c.replay() {
		close(c.watcher.result)
	}
}

// initialEvents sends the snapshot's elements as ADDED. It returns false if
// the watcher has ended.
func (c *catchUp) initialEvents(snapshot *watchcache.Snapshot, endBookmark bool) bool {
	sent := 0
	ok := true
	c.engine.scan(snapshot, &c.watcher.group.selected, "", nil, func(e *watchcache.Element) bool {
		if ok = c.send(c.engine.convert.added(e)); ok {
			sent++
		}
		return ok
	})
	c.engine.metrics.Initial(sent)
	if !ok || !endBookmark {
		return ok
	}
	event, err := c.engine.convert.bookmark(snapshot.RV(), true)
	if err != nil {
		// Without it the client would wait for ever.
		klog.ErrorS(err, "The end of initial events could not be marked", "resource", c.engine.config.GroupResource)
		return c.fail(apierrors.NewInternalError(err))
	}
	if ok = c.send(event); ok {
		c.watcher.delivered.bookmark(snapshot.RV())
	}
	return ok
}

// replay sends what the window has from the watcher's position on. It returns
// true once the dispatcher feeds the watcher, and false if it has ended.
func (c *catchUp) replay() bool {
	var events [replayBatch]*watchcache.Event
	for {
		n, _, err := c.engine.state.Since(c.position, events[:])
		if err != nil {
			c.engine.metrics.Expired()
			return c.fail(apierrors.NewResourceExpired("the watch fell behind the events that are kept: " + err.Error()))
		}
		for _, e := range events[:n] {
			if !c.event(e) {
				return false
			}
		}
		clear(events[:n])
		if n == 0 && c.engine.registry.goLive(c.watcher, c.position) {
			return true
		}
		if n == 0 && c.ended() {
			return false
		}
	}
}

// event sends one event, if it affects the watcher.
func (c *catchUp) event(e *watchcache.Event) bool {
	c.position = e.Position + 1
	if e.RV <= c.watcher.after {
		return true
	}
	o := c.watcher.group.outcome(e, false)
	if o == unaffected {
		return !c.ended()
	}
	if !c.send(c.engine.convert.event(e, o)) {
		return false
	}
	c.watcher.delivered.event(e.RV)
	c.engine.metrics.Delivered(1)
	return true
}

// send returns false if the watcher has ended.
func (c *catchUp) send(event watch.Event) bool {
	select {
	case <-c.quit:
		return false
	default:
	}
	select {
	case c.watcher.result <- event:
		return true
	case <-c.quit:
		return false
	case <-c.late:
		c.engine.registry.end(c.watcher, endParked)
		return false
	}
}

func (c *catchUp) ended() bool {
	select {
	case <-c.quit:
		return true
	default:
		return false
	}
}

// fail ends the watcher with an error that its client can tell. It returns
// false, for the watcher has ended.
func (c *catchUp) fail(err *apierrors.StatusError) bool {
	status := err.Status()
	c.send(watch.Event{Type: watch.Error, Object: &status})
	c.engine.registry.end(c.watcher, endExpired)
	return false
}
