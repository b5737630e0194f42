// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/cacher/status"
)

const (
	// bound is the time in which every request ends, unless the storage has held
	// requests.
	bound = 30 * time.Second
	// settling is the time after which nothing is on its way any more: the
	// dispatcher's time budget is spent.
	settling = 200 * time.Millisecond
)

// observe takes what clients have seen since the last time, and judges it.
func (d *driver) observe(o Operation) {
	if d.cacher == nil {
		return
	}
	before := d.status
	d.look()
	if d.status.ResourceVersion == 0 && !d.stopped {
		// The cache has fallen asleep. The reasons that its watches were given before
		// that stay right.
		d.status.OldestResourceVersion = max(d.status.OldestResourceVersion, before.OldestResourceVersion)
	}
	fills := d.store.fills.Load()
	for _, w := range d.watches {
		d.observeWatch(w, fills)
		if d.failed() {
			return
		}
	}
	for _, r := range d.reads {
		d.observeRead(r)
		if d.failed() {
			return
		}
	}
	d.observeStatus(before, fills)
	switch {
	case !d.calm():
		d.calmSince = time.Time{}
	case d.calmSince.IsZero():
		d.calmSince = time.Now()
	}
	if o.Verb == "elapse" && o.For >= settling && d.calm() {
		d.complete()
		if n := d.store.Watches(); n > 1 {
			d.fail("the cache has %d watches of its storage open", n)
		}
	}
}

// lookCloser is how many observations there are for one that has the cache describe
// each of its watches, which takes as long as the rest of its status.
const lookCloser = 4

// look asks the cache for its status.
func (d *driver) look() {
	if d.looks++; d.looks%lookCloser == 0 {
		d.status = d.cacher.Status()
		return
	}
	status, err := d.cacher.StatusPage(status.Query{})
	if err != nil {
		d.fail("the cache has no status: %v", err)
	}
	d.status = status
}

// calm reports whether no fault is in force or has effects, so that the cache must
// do all that it promises.
func (d *driver) calm() bool {
	return d.cacher != nil && !d.stopped && !d.lost && d.status.Ready && !d.faults.troubled(time.Now())
}

func (d *driver) observeWatch(w *watching, fills int64) {
	news, answered, err := w.observe()
	if answered && !w.answered {
		w.answered, w.openFills = true, fills
		if err != nil {
			w.refused, w.over = true, true
			d.result.Trace.observed(w.watcher.name, text("refused: "+errorText(err)))
			if !d.excuses(w, fills) {
				d.fail("%s was refused without a reason: %v", w.watcher.name, err)
			}
			return
		}
		w.learn(d.history)
	}
	if !w.answered && !w.gone && time.Since(w.opened) > bound && !d.faults.holds(w.opened) {
		d.fail("%s was not answered within %v", w.watcher.name, bound)
	}
	for _, s := range news {
		d.result.Events++
		d.result.Trace.observed(w.watcher.name, text(s.text))
		if w.over && s.kind == "closed" {
			continue
		}
		if s.encoded != "" {
			d.fail("%s: %s was encoded as %s", w.watcher.name, s.text, s.encoded)
			return
		}
		if wrong := w.see(s, d.history); wrong != "" {
			d.fail("%s: %s: %s", w.watcher.name, s.text, wrong)
			return
		}
	}
	if (w.failed != nil || w.over) && len(news) > 0 && !d.excuses(w, fills) {
		d.fail("%s ended without a reason: %s", w.watcher.name, news[len(news)-1].text)
	}
}

// excuses reports whether the schedule has a reason for the end of a watch.
func (d *driver) excuses(w *watching, fills int64) bool {
	expired := w.failed != nil && w.failed.code == 410
	stalled := w.stalledFor
	if w.stalled {
		stalled += time.Since(w.stalledSince)
	}
	position := max(w.last, w.from)
	switch {
	case w.gone, w.stopped, w.lost, d.lost, w.cache != d.caches:
		return true
	case !w.deadline.IsZero() && !time.Now().Before(w.deadline):
		return true
	case fills > w.fills && (w.over || expired || w.troubled):
		return true // it was listed again
	case len(w.all) == 0 && expired && !w.state && w.from <= d.mendedAt && w.opened.Before(d.mendedUntil):
		return true // the version may be one of before the list
	case d.undecodable > w.undecodable || (w.troubled && w.undecodable > 0):
		return true
	case len(w.all) == 0 && (w.troubled || d.faults.troubled(w.opened)):
		return true // it could not begin
	case len(w.all) == 0 && w.failed != nil && !w.state && w.from > 0 && (w.from > w.current || w.from < max(w.oldest, d.status.OldestResourceVersion)):
		return expired
	case len(w.all) == 0 && w.failed != nil && !expired && ((w.state && w.from > w.current) || d.setup.NoProgress || d.status.Silent):
		return true // it can't be known whether the version has been reached
	case w.state && stalled >= time.Minute: // which a cache gives a client that takes none of its initial events
		return expired
	case d.racing && d.setup.WindowBytes > 0:
		return expired // a burst is more than the window holds
	case (stalled > 0 || d.setup.WindowBytes > 0) &&
		(d.status.OldestResourceVersion > position || (d.status.OldestResourceVersion == position && w.within(d.history))):
		return expired
	case d.setup.WindowBytes > 0 && d.status.Asleep:
		return expired // and nobody knows any more what the window had
	case stalled > 0 && d.setup.WindowBytes > 0 && w.state:
		return expired // what it keeps is too much
	}
	return false
}

func (d *driver) observeRead(r *reading) {
	if r.done {
		return
	}
	select {
	case a := <-r.result:
		r.done = true
		d.result.Reads++
		d.result.Trace.observed(r.reader.name, a)
		d.judgeRead(r, a)
	default:
		if r.gone {
			d.fail("%s has not ended with its context", r.reader.name)
		}
		if time.Since(r.began) > bound && !d.faults.holds(r.began) {
			d.fail("%s was not answered within %v", r.reader.name, bound)
		}
	}
}

func (d *driver) judgeRead(r *reading, a answer) {
	notFound := a.err != nil && errorText(a.err) == "not found"
	switch {
	case a.took > bound && !d.faults.holds(r.began):
		d.fail("%s was answered after %v", r.reader.name, a.took)
	case a.encoded != "":
		d.fail("%s: %s", r.reader.name, a.encoded)
	case r.lost || d.lost || r.cache != d.caches:
	case a.err == nil && r.late:
		d.fail("%s was answered by a stopped cache", r.reader.name)
	case a.err == nil || (notFound && !r.list):
		if wrong := r.judge(a, d.history); wrong != "" {
			d.fail("%s: %s: %s", r.reader.name, a, wrong)
		}
	case strings.HasPrefix(errorText(a.err), "410") && a.token != "":
		r.state = pageState{token: a.token, after: r.after}
		fallthrough
	default:
		if !r.mayFail(a.err, d.history) && !d.faults.troubled(r.began) {
			d.fail("%s failed without a reason: %v", r.reader.name, a.err)
		}
	}
}

// observeStatus looks at what the cache says of itself.
func (d *driver) observeStatus(before cacher.Status, fills int64) {
	s := d.status
	if now := conditionOf(s); now != d.told {
		d.told = now
		d.result.Trace.observed("cache", now)
	}
	rested := len(d.faults.releases) == 0
	switch {
	case d.lost || d.stopped || s.Asleep || s.ResourceVersion == 0:
	case s.ResourceVersion > d.history.rv:
		d.fail("the cache is at %d, and the storage at %d", s.ResourceVersion, d.history.rv)
	case s.ResourceVersion < before.ResourceVersion && fills == d.restedFills:
		d.fail("the cache has gone back from %d to %d", before.ResourceVersion, s.ResourceVersion)
	case !d.faults.ever && !d.setup.Lazy && d.setup.Idle == 0 && d.caches == 1 && fills > d.startFills+1:
		d.fail("the storage was listed again, %d times, without a reason", fills-d.startFills)
	}
	if rested {
		d.restedFills = fills
		if d.lost && fills > d.lostFills && s.Ready && s.ResourceVersion > 0 && s.ResourceVersion <= d.history.rv {
			d.found()
		}
	}
}

// condition is what a trace has of the cache.
type condition struct {
	ready, asleep, paused bool
	rv, oldest            uint64
	objects, live, parked int
}

func conditionOf(s cacher.Status) condition {
	return condition{s.Ready, s.Asleep, s.Paused != nil, s.ResourceVersion, s.OldestResourceVersion, s.Objects, s.Watches.Live, s.Watches.Parked + s.Watches.Starting}
}

func (c condition) String() string {
	line := fmt.Sprintf("ready %v at %d, oldest %d, %d objects, %d live, %d parked", c.ready, c.rv, c.oldest, c.objects, c.live, c.parked)
	if c.asleep {
		line += ", asleep"
	}
	if c.paused {
		line += ", paused"
	}
	return line
}

// complete wants every watch that is read to have brought everything.
func (d *driver) complete() {
	for _, w := range d.watches {
		if w.over || w.failed != nil || !w.answered || w.stalled || w.stopped || w.cache != d.caches {
			continue
		}
		if w.lost {
			if d.restedFills > w.openFills {
				d.fail("%s outlives the history that it was opened in", w.watcher.name)
			}
			continue
		}
		if late := w.late(d.calmSince, cmp.Or(d.setup.Bookmarks, cacher.DefaultBookmarkInterval)); late > 0 && !d.racing {
			d.fail("%s has got no bookmark for %v", w.watcher.name, late)
			return
		}
		if missing := w.missing(d.history); missing != "" {
			d.fail("%s has not got %s", w.watcher.name, missing)
			return
		}
	}
}

// state is in which state the cache and its watchers are, for the coverage.
func (d *driver) state() State {
	s := State{Watchers: "no watchers"}
	switch {
	case d.cacher == nil:
		s.Cache = "not started"
	case d.stopped:
		s.Cache = "stopped"
	case d.lost:
		s.Cache = "history lost"
	case d.status.Asleep:
		s.Cache = "asleep"
	case !d.status.Ready:
		s.Cache = "not ready"
	case d.status.Paused != nil:
		s.Cache = "paused"
	case len(d.faults.releases) > 0:
		s.Cache = "in trouble"
	case d.faults.troubled(time.Now()):
		s.Cache = "after trouble"
	default:
		s.Cache = "healthy"
	}
	live, parked := d.status.Watches.Live > 0, d.status.Watches.Parked+d.status.Watches.Starting > 0
	switch {
	case live && parked:
		s.Watchers = "live and parked"
	case live:
		s.Watchers = "live"
	case parked:
		s.Watchers = "parked"
	}
	return s
}
