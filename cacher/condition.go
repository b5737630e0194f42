// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// condition says what the cache can vouch for. It is an immutable value: conditionHolder swaps
// it, and readers load it once per decision. Four dimensions change independently:
//
//	phase      starting ──▶ following ◀──▶ paused      starting ◀─▶ blocked ──▶ following
//	               ▲            │             │         every phase ──▶ stopped
//	               └──restored──┴─────────────┘
//	integrity  verified ──▶ suspected ──▶ corrupt      a list verifies; a comparison verifies
//	                                                   a suspected state
//	contact    answering ──▶ unresponsive ──▶ lost     a sign of life leads back to answering
//	silent     false ◀──▶ true
//
// Only on changes a condition.
type condition struct {
	limits *conditionLimits

	phase     phase
	integrity integrity
	contact   contact
	// silent is true while storage answers requests and does not report the progress of the
	// cache's watch, although it supports that.
	silent bool

	// trustedFrom is the lowest version that can be shown by undoing events. Invariant: it is
	// math.MaxUint64 unless the state is verified.
	trustedFrom uint64
	// lists counts the lists that have replaced the state.
	lists uint64
	// resynced is the last list at a version of which watchers had received events, although
	// the state lacked some. A client's resourceVersion does not show which state it has.
	resynced struct {
		rv uint64
		at time.Duration
	}

	// since is when the cache began to have a state to serve from, or ceased to.
	since time.Duration
	// err is why the cache is not following, nil if the reason is unknown, and pausedSince the
	// time since which it is paused. The log may show err, clients may not.
	err         error
	pausedSince time.Duration
	// outageErr is why storage is not answering, since outageSince.
	outageErr   error
	outageSince time.Duration
	// refusedSince is when version requests began to fail, 0 if they succeed.
	refusedSince time.Duration

	// cause is the cause of the next list, RelistOther if none is known. The first cause
	// since the last list counts.
	cause metrics.RelistCause
	// ordered is true from the order of a list until the next list. The Reflector lists until
	// it succeeds, so one order is enough.
	ordered bool
	// expired is true if the arriving list has expired the watches already.
	expired bool
	// failedLists counts consecutive list failures while storage was reachable.
	failedLists int

	// listDue is when a list is ordered for the suspicion, 0 if none is due.
	listDue time.Duration
	// notBefore is when the next suspicion may be followed up, listNotBefore when the next list
	// for one may be ordered, and pause the time until the ones after these. The pause doubles
	// and never shrinks: neither a persistent difference nor a client's requests make the cache
	// compare or list all the time. Invariant: listNotBefore <= notBefore.
	notBefore, listNotBefore, pause time.Duration
	// differs is true if the last comparison found difference, after that many lists.
	differs      bool
	difference   watchcache.Digest
	differsAfter uint64
	// persistent is true if the difference survived a list: events are not its cause and
	// another list won't help, because storage has objects under other keys than the cache.
	persistent bool

	// changed is closed at the next change of phase or integrity.
	changed chan struct{}
}

// phase says whether there is a state, and whether it follows storage.
type phase uint8

const (
	starting  phase = iota // no state yet, or one of a history that storage no longer has
	blocked                // starting, and storage has something that can't be listed
	following              // the state follows storage
	paused                 // storage can't deliver the next change, or a list
	stopped                // final
)

// integrity says whether the state is right.
type integrity uint8

const (
	verified  integrity = iota
	suspected           // the state may be wrong: a comparison or a list clears it
	corrupt             // the state lacks events: only a list clears it
)

// contact says whether storage answers requests.
type contact uint8

const (
	answering    contact = iota
	unresponsive         // a request failed, and nothing was received since
	lost                 // unresponsive for longer than StorageTimeout
)

// conditionLimits are the constants of a condition; tests use smaller ones.
type conditionLimits struct {
	// storageTimeout is the time after which an unresponsive storage is lost.
	storageTimeout time.Duration
	// pause and pauseMax bound the time between two suspicions that are followed up.
	pause, pauseMax time.Duration
	// failedLists is the number of consecutive list failures, while storage answers, after
	// which an object is blamed.
	failedLists int
	// compares is true if the state can be compared with storage.
	compares bool
}

// resyncQuarantine is how long watches may not resume from the version of a corrective list.
// It exceeds client-go's retry delay (30 s plus jitter).
const resyncQuarantine = 5 * time.Minute

func limitsOf(config *Config) *conditionLimits {
	return &conditionLimits{
		storageTimeout: config.StorageTimeout, pause: 10 * time.Second, pauseMax: time.Hour,
		failedLists: 2, compares: config.ConsistencyCheckInterval >= 0,
	}
}

// served reports whether there is a state to serve from.
func (c *condition) served() bool { return c.phase == following || c.phase == paused }

// ambiguous reports whether a client that resumes at rv may have a wrong state. It must list.
// So must a client that has just listed at rv, if storage stays idle during the quarantine.
func (c *condition) ambiguous(rv uint64, now time.Duration) bool {
	return c.resynced.rv != 0 && c.resynced.rv == rv && now-c.resynced.at < resyncQuarantine
}

// needsTick reports whether time alone changes the condition.
func (c *condition) needsTick() bool { return c.contact != answering || c.listDue != 0 }

// event is what happened to a cache. The fields after now are those of the kinds named beside
// them.
type event struct {
	kind eventKind
	now  time.Duration // set by the holder

	err error // the reason, in the cache's words: kinds that report a failure
	// cause is storage's error: requestFailed, versionFailed, watchBroke, listFailed.
	cause error
	// asked is the time of the failed request, and heard that of the last sign of life of
	// storage, which the holder sets: requestFailed, versionFailed.
	asked, heard time.Duration
	// rv is the version of the list (listArrives, listed) or of the comparison (equal).
	rv uint64
	// contradicts is true if a list differs from the state at the state's own version,
	// backwards if it is older than the state, partial if watchers may have received a part
	// of its revision: listArrives.
	contradicts, backwards, partial bool
	// answers is true if storage answers version requests, expired if the list was refused
	// for its age: listFailed.
	answers, expired bool
	// relist is why: listNeeded.
	relist metrics.RelistCause
	// gap is true if events were missed: changeRefused.
	gap bool
	// began is the condition in which the comparison or the version request began: equal,
	// differs, notCompared, restored.
	began *condition
	// difference is what the comparison found: differs.
	difference watchcache.Digest
}

type eventKind uint8

const (
	heard         eventKind = iota // storage gave a sign of life
	versionRead                    // heard, and the version of storage was read
	requestFailed                  // a request got an error or no answer
	versionFailed                  // requestFailed, for a version request
	tick                           // a second has passed
	listArrives                    // a list is about to replace the state
	listed                         // a list has replaced the state
	listRefused                    // the listed objects could not be taken
	listFailed                     // storage could not be listed
	listNeeded                     // the source is about to list again
	watchBroke                     // a watch of storage ended and is resumed
	undeliverable                  // storage answers and can't deliver the next change
	changeRefused                  // a change could not be applied
	restored                       // storage has gone back to an earlier version
	suspicion                      // an answer of storage contradicts the state
	equal                          // a comparison found no difference
	differs                        // a comparison found a difference
	notCompared                    // a comparison failed
	fellSilent                     // storage does not report progress
	reports                        // storage reports progress again
	stop                           // the cache is stopped
)

// effects says what the engine must do for an event. execute performs them in this order.
type effects uint16

const (
	// The effects up to publish come before readers see the new condition.

	expireWatches effects = 1 << iota // 410 to the open watches: their state was wrong
	endBackfills                      // the history before a list may be another one
	dropKept                          // kept bytes and versions are of the state before the list
	resumeWatches                     // later watches don't get the error of a pause or an expiry
	reachList                         // waiting reads: the state is at the list's version
	countList                         // the list's metrics; whoever waits for the list sees them
	setGauges                         // in the order of the conditions
	publish                           // readers see the condition, and waiting ones wake up
	// The effects after publish turn away clients, who find the new condition if they return.

	failWatches // an error to the open watches: storage can't deliver the next change
	countFault  // an undeliverable object
	orderList   // the Reflector lists again
	compareNow  // the consistency checker compares
	endReads    // reads of storage, which is lost, fail
	logEvent    // after the holder's mutex is released
)

// on returns the condition after an event, and what the engine must do about it. It is pure.
func (c condition) on(ev event) (condition, effects) {
	if c.phase == stopped {
		return c, 0
	}
	before := c
	var do effects
	switch ev.kind {
	case heard, versionRead:
		do = c.onHeard(ev)
	case requestFailed:
		c.onRequestFailed(ev)
	case versionFailed:
		do = c.onVersionFailed(ev)
	case tick:
		do = c.onTick(ev)
	case listArrives:
		do = c.onListArrives(ev)
	case listed:
		do = c.onListed(ev)
	case listRefused:
		c.startFails(ev.err, true)
		do = logEvent
	case listFailed:
		do = c.onListFailed(ev)
	case listNeeded:
		c.nameCause(ev.relist)
	case watchBroke:
		c.startFails(ev.err, false)
		c.onRequestFailed(ev)
		do = logEvent
	case undeliverable:
		do = c.onUndeliverable(ev)
	case changeRefused:
		if ev.gap {
			c.markCorrupt()
		}
		do = c.order(metrics.RelistChange) | logEvent
	case restored:
		do = c.onRestored(ev)
	case suspicion:
		do = c.onSuspicion(ev)
	case equal, differs, notCompared:
		do = c.onCompared(ev)
	case fellSilent, reports:
		c.silent = ev.kind == fellSilent
		do = logEvent
	case stop:
		c.phase = stopped
	}
	if c.served() != before.served() {
		c.since = ev.now
	}
	if c.phase != before.phase && c.phase != stopped {
		do |= setGauges
	}
	return c, do | publish
}

func (c *condition) onHeard(ev event) (do effects) {
	if c.contact == lost {
		c.refusedSince = 0
		do = logEvent
	}
	c.contact = answering
	c.outageErr = nil
	if ev.kind == versionRead {
		c.refusedSince = 0
	}
	return do
}

// onRequestFailed ignores a failure if storage was heard of since the request was made.
func (c *condition) onRequestFailed(ev event) {
	err := ev.cause
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = errNoAnswer // the request was given up
	}
	switch {
	case c.contact != answering && err != errNoAnswer:
		c.outageErr = err
	case c.contact == answering && ev.heard <= ev.asked:
		c.contact = unresponsive
		c.outageErr = err
		c.outageSince = ev.asked
	}
}

// onVersionFailed logs version requests that fail for the timeout although storage gave a
// sign of life in its second half.
func (c *condition) onVersionFailed(ev event) effects {
	c.onRequestFailed(ev)
	if errors.Is(ev.cause, context.Canceled) {
		return 0
	}
	if c.refusedSince == 0 {
		c.refusedSince = max(1, ev.now)
	}
	timeout := c.limits.storageTimeout
	if ev.now-c.refusedSince >= timeout && ev.heard > c.refusedSince+timeout/2 {
		return logEvent
	}
	return 0
}

func (c *condition) onTick(ev event) (do effects) {
	if c.contact != answering && ev.now-c.outageSince >= c.limits.storageTimeout {
		do = endReads
		if c.contact == unresponsive {
			c.contact = lost
			do |= logEvent
		}
	}
	if c.integrity == suspected && c.listDue != 0 && ev.now >= c.listDue {
		do |= c.orderForSuspicion(ev.now)
	}
	return do
}

// onListArrives expires the watches of a wrong state: a client with a bookmark above an event
// that it missed must not resume there.
func (c *condition) onListArrives(ev event) (do effects) {
	if c.served() && (ev.contradicts || ev.partial) {
		c.resynced.rv = ev.rv
		c.resynced.at = ev.now
	}
	if c.served() && ev.contradicts && c.integrity == verified {
		c.markCorrupt()
		do = logEvent
	}
	if ev.backwards {
		c.markCorrupt()
		do |= reachList // a read of a version that is gone must not get the new state for it
	}
	if c.lists > 0 {
		do |= endBackfills
	}
	return do | c.expire()
}

func (c *condition) onListed(ev event) effects {
	do := c.expire() // if the state was found to be wrong since the list arrived
	c.expired = false
	if c.integrity != verified || (ev.rv < c.trustedFrom && !c.persistent) {
		c.trustedFrom = ev.rv
	}
	c.phase = following
	c.integrity = verified
	c.err = nil
	c.lists++
	c.failedLists = 0
	c.cause = metrics.RelistOther
	c.ordered = false
	c.listDue = 0
	return do | dropKept | resumeWatches | reachList | countList | logEvent
}

// expire expires the watches once for each list of a state that is not verified.
func (c *condition) expire() effects {
	if c.integrity == verified || c.expired {
		return 0
	}
	c.expired = true
	return expireWatches
}

// onListFailed pauses or blocks the cache if storage answers and lists fail repeatedly. The
// text of the error does not decide.
func (c *condition) onListFailed(ev event) effects {
	c.failedLists++
	if !ev.answers {
		c.onRequestFailed(ev)
	}
	if !ev.answers || ev.expired {
		c.failedLists = 0
	}
	broken := c.failedLists >= c.limits.failedLists
	c.startFails(ev.err, broken)
	switch {
	case !broken:
		return logEvent
	case c.served():
		return c.onUndeliverable(ev)
	}
	return countFault | logEvent
}

// startFails notes why a cache that has no state gets none.
func (c *condition) startFails(err error, isBlocked bool) {
	if c.served() {
		return
	}
	c.err = err
	if isBlocked {
		c.phase = blocked
	}
}

func (c *condition) onUndeliverable(ev event) effects {
	if c.phase == following {
		c.phase = paused
		c.pausedSince = ev.now
	}
	if c.phase == paused {
		c.err = ev.err
	}
	c.nameCause(metrics.RelistUndeliverable)
	return failWatches | countFault | logEvent
}

// onRestored ignores a version request from before the last list: the version that it is
// compared with may be of the history before.
func (c *condition) onRestored(ev event) effects {
	if ev.began.lists != c.lists {
		return 0
	}
	if c.served() {
		c.phase = starting
		c.err = nil
	}
	c.markCorrupt()
	return c.order(metrics.RelistRestored) | logEvent
}

func (c *condition) onSuspicion(ev event) effects {
	if c.persistent || c.integrity != verified || ev.now < c.notBefore {
		return 0
	}
	c.suspect()
	if !c.limits.compares {
		return c.orderForSuspicion(ev.now) | logEvent
	}
	c.backOff(ev.now)
	return compareNow | logEvent
}

// onCompared ignores a comparison of a state that a list has replaced since. It leaves a
// suspicion alone that began during the comparison: another comparison is due for it.
func (c *condition) onCompared(ev event) (do effects) {
	if ev.kind == notCompared {
		do = logEvent
	}
	current := ev.began.integrity == c.integrity
	switch {
	case ev.began.lists != c.lists:
	case ev.kind == differs:
		do = c.onDiffers(ev, current)
	case !current || c.integrity == corrupt:
	case ev.kind == equal:
		c.integrity = verified
		c.listDue = 0
		c.differs = false
		c.persistent = false
		if c.trustedFrom == math.MaxUint64 {
			c.trustedFrom = ev.rv
		}
	case c.integrity == suspected && c.listDue == 0:
		do |= c.orderForSuspicion(ev.now) // what can't be compared is listed
	}
	return do
}

// onDiffers orders a list for the first difference at once, unless another suspicion has just
// ordered one, and for the next ones after a pause. A persistent difference ends the suspicion: the cache then shows what storage lists,
// but can't vouch for earlier versions.
func (c *condition) onDiffers(ev event, current bool) effects {
	first := !c.differs
	c.persistent = !first && c.difference == ev.difference && (c.persistent || c.differsAfter < c.lists)
	c.differs = true
	c.difference = ev.difference
	c.differsAfter = c.lists
	c.trustedFrom = math.MaxUint64
	switch {
	case c.integrity == corrupt:
	case !c.persistent:
		c.suspect()
		c.listDue = max(1, ev.now, c.listNotBefore)
		if !first {
			c.listDue = max(c.listDue, c.notBefore)
		}
		if ev.now >= c.listDue {
			return c.orderForSuspicion(ev.now) | logEvent
		}
	case current:
		c.integrity = verified
		c.listDue = 0
	}
	return logEvent
}

func (c *condition) suspect() {
	c.integrity = max(c.integrity, suspected)
	c.trustedFrom = math.MaxUint64
}

// markCorrupt marks the state wrong until the next list.
func (c *condition) markCorrupt() {
	c.integrity = corrupt
	c.trustedFrom = math.MaxUint64
	c.listDue = 0
}

// backOff begins a pause.
func (c *condition) backOff(now time.Duration) {
	c.pause = min(max(2*c.pause, c.limits.pause), c.limits.pauseMax)
	c.notBefore = now + c.pause
}

func (c *condition) orderForSuspicion(now time.Duration) effects {
	c.listDue = 0
	if c.ordered {
		return 0
	}
	c.backOff(now)
	c.listNotBefore = c.notBefore
	return c.order(metrics.RelistInconsistent)
}

// order orders a list unless one is ordered.
func (c *condition) order(cause metrics.RelistCause) effects {
	c.nameCause(cause)
	if c.ordered {
		return 0
	}
	c.ordered = true
	return orderList
}

func (c *condition) nameCause(cause metrics.RelistCause) {
	if c.cause == metrics.RelistOther {
		c.cause = cause
	}
}
