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

// condition says what the cache can vouch for. It is immutable: conditionHolder swaps it, and
// readers load it once per decision. Only its method on changes it. The dimensions are independent:
//
//	phase      starting ──▶ following ◀──▶ paused      starting ◀─▶ blocked ──▶ following
//	               ▲            │             │         every phase ──▶ stopped
//	               └──restored──┴─────────────┘
//	integrity  verified ──▶ suspected ──▶ corrupt      a list verifies; a comparison verifies
//	                                                   a suspected state
//	contact    answering ──▶ unresponsive ──▶ lost     a sign of life leads back to answering
//	silent     false ◀──▶ true
type condition struct {
	limits *conditionLimits

	phase     phase
	integrity integrity
	contact   contact
	// silent is true while storage answers requests but reports no progress, although it can.
	silent bool

	// trustedFrom is the lowest version that we can rebuild from events. Invariant: math.MaxUint64
	// unless verified.
	trustedFrom uint64
	// lists counts the lists that replaced the state.
	lists uint64
	// resynced is the last list at a version at which the previous state lacked events, i.e.
	// clients with this resourceVersion may have either state.
	resynced struct {
		rv uint64
		at time.Duration
	}

	// since is when the cache last gained or lost a state to serve from.
	since time.Duration
	// err is why the cache is not following, nil if unknown. Log only, clients must not see it.
	// pausedSince is set in phase paused.
	err         error
	pausedSince time.Duration
	// outageErr is why storage does not answer, since outageSince.
	outageErr   error
	outageSince time.Duration
	// refusedSince is when version requests began to fail, 0 if they succeed.
	refusedSince time.Duration

	// cause is the first cause of the next list, RelistOther if unknown.
	cause metrics.RelistCause
	// ordered is true between the order of a list and the list. We order once because the Reflector
	// retries lists.
	ordered bool
	// expired is true if the arriving list already expired the watches.
	expired bool
	// failedLists counts consecutive list failures while storage was reachable.
	failedLists int

	// listDue is when to order a list for the suspicion, or 0.
	listDue time.Duration
	// notBefore is the earliest follow-up of the next suspicion, listNotBefore the earliest list
	// for one, and pause their backoff. It doubles and never shrinks, so a persistent difference or
	// client requests can't keep the cache comparing or listing. Invariant: listNotBefore <=
	// notBefore.
	notBefore, listNotBefore, pause time.Duration
	// differs is true if the last comparison found difference, when lists was differsAfter.
	differs      bool
	difference   watchcache.Digest
	differsAfter uint64
	// persistent is true if the difference survived a list. Another list won't help then, because
	// storage has objects under other keys than the cache.
	persistent bool

	// changed is closed at the next change of phase or integrity.
	changed chan struct{}
}

type phase uint8

const (
	starting  phase = iota // no state, or one of a history that storage lost
	blocked                // starting, and an object prevents lists
	following              // the state follows storage
	paused                 // storage can't deliver the next change, or a list
	stopped                // final
)

type integrity uint8

const (
	verified  integrity = iota
	suspected           // may be wrong; a comparison or a list clears it
	corrupt             // lacks events; only a list clears it
)

type contact uint8

const (
	answering    contact = iota
	unresponsive         // a request failed; no sign of life since
	lost                 // unresponsive for longer than storageTimeout
)

// conditionLimits are constants, smaller in tests.
type conditionLimits struct {
	// storageTimeout turns an unresponsive storage into a lost one.
	storageTimeout time.Duration
	// pause and pauseMax bound condition.pause.
	pause, pauseMax time.Duration
	// failedLists consecutive failures, while storage answers, mean that an object is
	// undeliverable.
	failedLists int
	// compares is false if Config disables comparisons.
	compares bool
}

// resyncQuarantine is how long watches may not resume from the version of a corrective list. It
// exceeds client-go's retry delay (30 s plus jitter).
const resyncQuarantine = 5 * time.Minute

func limitsOf(config *Config) *conditionLimits {
	return &conditionLimits{
		storageTimeout: config.StorageTimeout, pause: 10 * time.Second, pauseMax: time.Hour,
		failedLists: 2, compares: config.ConsistencyCheckInterval >= 0,
	}
}

// served reports whether there is a state to serve from.
func (c *condition) served() bool { return c.phase == following || c.phase == paused }

// ambiguous reports whether a client that resumes at rv may have a wrong state, and must list. That
// includes clients that listed after the correction while storage is idle.
func (c *condition) ambiguous(rv uint64, now time.Duration) bool {
	return c.resynced.rv != 0 && c.resynced.rv == rv && now-c.resynced.at < resyncQuarantine
}

func (c *condition) needsTick() bool { return c.contact != answering || c.listDue != 0 }

// event is an input of the condition. Comments name the kinds that use a field.
type event struct {
	kind eventKind
	now  time.Duration // set by handle

	err error // the reason, in our words: all failures
	// cause is storage's error. For requestFailed, versionFailed, watchBroke and listFailed.
	cause error
	// asked is the start of the failed request, heard (set by handle) the last sign of life. For
	// requestFailed and versionFailed.
	asked, heard time.Duration
	// rv is the version of the list or the comparison: listArrives, listed, equal.
	rv uint64
	// contradicts is true if a list differs from the state at the same version, backwards if it is
	// older, partial if watchers may have received a part of its revision: listArrives.
	contradicts, backwards, partial bool
	// answers is true if storage answers version requests, expired if it compacted the list's
	// version: listFailed.
	answers, expired bool
	// relist is the cause: listNeeded.
	relist metrics.RelistCause
	// gap is true if events were missed: changeRefused.
	gap bool
	// began is the condition at the start of a comparison or version request: equal, differs,
	// notCompared, restored.
	began *condition
	// difference is between the digests: differs.
	difference watchcache.Digest
}

type eventKind uint8

const (
	heard         eventKind = iota // storage gave a sign of life
	versionRead                    // heard, with storage's version
	requestFailed                  // a request failed or timed out
	versionFailed                  // a version request failed
	tick                           // a second passed
	listArrives                    // a list is about to replace the state
	listed                         // a list replaced the state
	listRefused                    // a listed object was invalid
	listFailed                     // storage could not be listed
	listNeeded                     // the source is about to list
	watchBroke                     // the source resumes a broken watch
	undeliverable                  // storage answers but can't deliver the next change
	changeRefused                  // the state refused a change
	restored                       // storage went back to an earlier version
	suspicion                      // an answer of storage contradicts the state
	equal                          // a comparison found no difference
	differs                        // a comparison found a difference
	notCompared                    // a comparison failed
	fellSilent                     // storage stopped reporting progress
	reports                        // storage reports progress again
	stop
)

// effects are the engine's duties after an event, in this order.
type effects uint16

const (
	// Before readers see the new condition:

	expireWatches effects = 1 << iota // with 410, since their state was wrong
	endBackfills                      // they may be of another history
	dropKept                          // kept bytes and versions
	resumeWatches                     // new ones don't get the error of a pause or an expiry
	reachList                         // wakes reads up to the list's version
	countList                         // the metrics of the list, before its waiters return
	setGauges
	publish // store the condition, and wake its waiters
	// After publish, a rejected client that retries finds the new condition:

	failWatches // the open ones get an error
	countFault  // in metrics
	orderList
	compareNow
	endReads // those waiting for a lost storage
	logEvent // after the holder's mutex is released
)

// on returns the condition after an event, and the effects. It is pure.
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

// onRequestFailed ignores a failure if storage gave a sign of life after the request began.
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

// onVersionFailed logs if version requests failed for storageTimeout and storage gave a sign of
// life in the second half of it.
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

// onListArrives expires the watches of a wrong state, because a client with a bookmark above a
// missed event must not resume.
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
		do |= reachList // a read of a lost version must not get the new state
	}
	if c.lists > 0 {
		do |= endBackfills
	}
	return do | c.expire()
}

func (c *condition) onListed(ev event) effects {
	do := c.expire() // if the state became corrupt after the list arrived
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

// expire expires the watches of an unverified state, once per list.
func (c *condition) expire() effects {
	if c.integrity == verified || c.expired {
		return 0
	}
	c.expired = true
	return expireWatches
}

// onListFailed pauses or blocks the cache if lists fail repeatedly while storage answers,
// regardless of the error.
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

// onRestored ignores a version request from before the last list, since its comparison may be with
// the previous history.
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

// onCompared ignores a comparison with a replaced state, and keeps a suspicion raised meanwhile:
// another comparison is due.
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
		do |= c.orderForSuspicion(ev.now) // we can't compare it, so relist
	}
	return do
}

// onDiffers orders a list for a first difference at once, unless another suspicion just did, and
// for later ones after a pause. A persistent difference ends the suspicion, but we can't vouch for
// earlier versions.
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
