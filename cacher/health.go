// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/metrics"
)

// conditionHolder holds the condition of a cache. Readers load it without a lock.
type conditionHolder struct {
	time    timeline.Timeline
	effects executor
	value   atomic.Pointer[condition]
	// heardAt is when storage last gave a sign of life, in nanoseconds on the timeline.
	heardAt atomic.Int64
	// mu orders the effects like the conditions: handle holds it until execute returns.
	mu sync.Mutex
}

// executor performs the effects of a condition's changes.
type executor interface {
	// execute performs effects in the order of their declaration. It is called with the holder's mu
	// held, so it must not block or handle another event.
	execute(do effects, ev event, before, after *condition)
	// log logs the event, after mu is released.
	log(ev event, before, after *condition)
}

func newConditionHolder(limits *conditionLimits, time timeline.Timeline, effects executor) *conditionHolder {
	h := &conditionHolder{time: time, effects: effects}
	h.value.Store(&condition{limits: limits, cause: metrics.RelistStart, changed: make(chan struct{})})
	return h
}

func (h *conditionHolder) load() *condition { return h.value.Load() }

// await returns the first condition that fits. It fails once the cache stops or ctx is done.
func (h *conditionHolder) await(ctx context.Context, fits func(*condition) bool) (*condition, error) {
	for {
		c := h.load()
		switch {
		case c.phase == stopped:
			return c, tasks.ErrStopped
		case fits(c):
			return c, nil
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			return c, context.Cause(ctx)
		}
	}
}

// Follows implements freshness.Follower: waiting reads fail while the state can't advance.
func (h *conditionHolder) Follows() (follows bool, changed <-chan struct{}) {
	c := h.load()
	return c.phase != paused, c.changed
}

// handle applies an event to the condition, and performs the effects.
func (h *conditionHolder) handle(ev event) (before, after *condition) {
	h.mu.Lock()
	ev.now = h.time.Now()
	ev.heard = time.Duration(h.heardAt.Load())
	before = h.load()
	next, do := before.on(ev)
	after = &next
	if do != 0 {
		h.effects.execute(do, ev, before, after)
	}
	h.mu.Unlock()
	if do&logEvent != 0 {
		h.effects.log(ev, before, after)
	}
	return before, after
}

// execute performs effects in order of declaration. Caller must hold the condition's mu, so nothing
// here may block or handle another event.
func (e *engine) execute(do effects, ev event, before, after *condition) {
	if do&expireWatches != 0 {
		e.fanout.Fail(source.Failure(expiredError(errInconsistent)))
	}
	if do&endBackfills != 0 {
		e.backfill.end()
	}
	if do&dropKept != 0 {
		e.encodings.Clear()
		e.versions.Listed(ev.rv)
	}
	if do&resumeWatches != 0 {
		e.fanout.ClearFailure()
		e.fanout.WakeUp()
	}
	if do&reachList != 0 {
		e.waiting.Reached(ev.rv)
	}
	if do&countList != 0 {
		e.metrics.SetResourceVersion(ev.rv)
		e.metrics.Filled(ev.now - time.Duration(e.storage.listBegan.Load()))
		e.metrics.Relist(before.cause)
	}
	if do&setGauges != 0 {
		e.metrics.Ready(after.served())
		e.metrics.Paused(after.phase == paused)
	}
	if do&publish != 0 {
		wakes := after.phase != before.phase || after.integrity != before.integrity
		if wakes {
			after.changed = make(chan struct{})
		}
		e.condition.value.Store(after)
		if wakes {
			close(before.changed)
		}
	}
	if do&failWatches != 0 {
		e.fanout.Fail(source.Failure(undeliverableStatus(ev.err)))
	}
	if do&countFault != 0 {
		e.metrics.Undeliverable()
	}
	if do&orderList != 0 {
		e.storage.source.Relist()
	}
	if do&compareNow != 0 {
		e.comparer.order()
	}
	if do&endReads != 0 {
		e.storage.reads.end(ev.now, freshness.GetTimeout(e.config.FreshnessTimeout), ev.now-after.outageSince)
	}
}

// heard records a sign of life from storage, i.e. an event, a bookmark, a list or an answer.
func (h *conditionHolder) heard() {
	h.heardAt.Store(int64(h.time.Now()))
	if h.load().contact != answering {
		h.handle(event{kind: heard})
	}
}

func (h *conditionHolder) silence() time.Duration {
	return max(0, h.time.Now()-time.Duration(h.heardAt.Load()))
}

// why returns why the cache is not ready, nil if it is or the reason is unknown.
func (c *condition) why() error {
	switch {
	case c.phase == stopped:
		return tasks.ErrStopped
	case c.served():
		return nil
	}
	return c.err
}

// refusal returns a 429 for a request that needs a state.
func (c *condition) refusal(now time.Duration) error {
	why := "storage is (re)initializing"
	switch c.phase {
	case stopped:
		why = tasks.ErrStopped.Error()
	case blocked:
		why += ": storage has an object that it cannot deliver"
	}
	return refusedError(why, c.retryAfter(now))
}

// retryAfter returns the Retry-After, in seconds, for a request that neither the cache nor storage
// should serve now.
func (c *condition) retryAfter(now time.Duration) int {
	switch c.phase {
	case following:
		return freshness.RetrySeconds
	case paused:
		return retryAfter(now - c.pausedSince)
	}
	return retryAfter(now - c.since)
}

func (h *conditionHolder) refusal() error { return h.load().refusal(h.time.Now()) }

// awaitVerified waits at most timeout for a verified state. relisted reports whether a list
// replaced the state meanwhile.
func (h *conditionHolder) awaitVerified(ctx context.Context, timeout time.Duration) (relisted bool, err error) {
	before := h.load()
	if before.integrity == verified {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errDoubtful)
	defer cancel()
	c, err := h.await(ctx, func(c *condition) bool { return c.integrity == verified })
	return c.lists > before.lists, err
}

// boundedReads are the reads waiting for storage, which end when storage is lost.
type boundedReads struct {
	mu struct {
		sync.Mutex
		began map[*context.CancelCauseFunc]time.Duration
	}
}

func (r *boundedReads) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.began) > 0
}

// end cancels the reads that have waited for at least grace.
func (r *boundedReads) end(now, grace, outage time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for cancel, began := range r.mu.began {
		if now-began >= grace {
			(*cancel)(fmt.Errorf("%w for %v", errAway, outage.Round(time.Second)))
			delete(r.mu.began, cancel)
		}
	}
}

// begin adds a read. Caller must call done after it.
func (r *boundedReads) begin(now time.Duration, cancel context.CancelCauseFunc) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.began == nil {
		r.mu.began = make(map[*context.CancelCauseFunc]time.Duration)
	}
	r.mu.began[&cancel] = now
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.mu.began, &cancel)
	}
}

// log implements executor.
func (e *engine) log(ev event, before, after *condition) { e.journal.event(ev, before, after) }

// read runs a read on storage. It ends when storage is lost, and early enough before the
// client's deadline to return a status.
func (f *follower) read(client context.Context, read func(context.Context) error) error {
	inTime, stop := freshness.BeforeDeadline(client)
	defer stop()
	ctx, cancel := context.WithCancelCause(inTime)
	defer cancel(nil)
	defer f.reads.begin(f.time.Now(), cancel)()
	err := read(ctx)
	if err == nil || storage.IsNotFound(err) {
		f.condition.heard()
		return err
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errAway):
		return awayStatus(cause)
	case cause != nil && client.Err() == nil:
		return awayStatus(errOwnTime)
	}
	return err
}
