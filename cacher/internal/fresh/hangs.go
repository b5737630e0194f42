// SPDX-License-Identifier: Apache-2.0

package fresh

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// hangTimeout and hangTimeoutMax bound how long a watch may bring nothing
	// that takes the cache further, although storage has told that it is ahead
	// and progress was requested. The time doubles with each watch that is given
	// up in vain, from the second one on.
	hangTimeout    = 400 * time.Millisecond
	hangTimeoutMax = 10 * time.Second
	// hangCheckTimeout bounds the version request that precedes giving up a
	// watch.
	hangCheckTimeout = time.Second
)

// Watch is the storage's watch that feeds the cache.
type Watch interface {
	// Heard returns how many times the watch has brought the cache further, and
	// when it last has.
	Heard() (times int64, last time.Time)
	// Busy reports whether the watch has brought something that the feed has
	// not taken yet.
	Busy() bool
	// GiveUp has another watch opened in place of this one. GiveUp never
	// blocks.
	GiveUp()
}

// hangDetector finds out that the cache's watch hangs, as a watch does that an
// unresponsive member of etcd serves: gRPC notices after half a minute, if at
// all. The detector belongs to the progress requester's goroutine.
//
// A watch that is quiet because nothing happens is never given up, and neither
// is one that brings events slowly, whose events wait for the feed, or whose
// storage does not answer: another watch would bring no more.
type hangDetector struct {
	clock    clock.PassiveClock
	current  func() Watch
	versions *VersionRequests
	waiting  *WaitingReads
	gaveUp   func(after time.Duration)

	// watch is the watch that was looked at last, heard how many times it had
	// brought something then, at the version that the cache had reached, and since
	// the time from which on the watch has brought nothing although it should
	// have; zero: there was nothing to bring. looked is when that was seen last. The
	// watch counts something as brought before the cache has taken it, so that both
	// heard and at are needed.
	watch   Watch
	heard   int64
	at      uint64
	since   time.Time
	looked  time.Time
	timeout time.Duration
	again   bool // a watch was given up, and nothing was heard since
}

// look gives up the watch if it hangs. look is called before each progress
// request, so that the answer to the request counts as heard since.
func (h *hangDetector) look(ctx context.Context) {
	w, now, at := h.current(), h.clock.Now(), h.waiting.At()
	if w == nil || w.Busy() || h.versions.Highest() <= at {
		h.adapt(w)
		h.watch, h.since = w, time.Time{}
		return
	}
	if heard, _ := w.Heard(); w != h.watch || heard != h.heard || at != h.at || h.since.IsZero() {
		h.adapt(w)
		h.watch, h.heard, h.at, h.since, h.looked = w, heard, at, now, now
		return
	}
	h.looked = now
	waited := now.Sub(h.since)
	if waited < max(h.timeout, hangTimeout) {
		return
	}
	if !h.ahead(ctx) {
		h.since = h.clock.Now()
		return
	}
	if h.again {
		h.timeout = min(2*max(h.timeout, hangTimeout), hangTimeoutMax)
	}
	h.again, h.since = true, time.Time{}
	h.gaveUp(waited)
	w.GiveUp()
}

// ahead reports whether storage tells, now, a version that the cache has not
// reached.
func (h *hangDetector) ahead(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, hangCheckTimeout)
	defer cancel()
	v, err := h.versions.Current(ctx)
	return err == nil && v.Current > h.waiting.At()
}

// adapt adapts the timeout to how long the watch took to bring something. Nobody
// looks when no read waits, so that what was brought last may have come long after
// what the reads waited for. They looked each progressInterval until that came.
func (h *hangDetector) adapt(w Watch) {
	if w == nil || w != h.watch || h.since.IsZero() {
		return
	}
	heard, last := w.Heard()
	if heard == h.heard {
		return
	}
	h.again = false
	if came := h.looked.Add(progressInterval); last.After(came) {
		last = came
	}
	took := last.Sub(h.since)
	h.timeout = min(max(2*took, hangTimeout), hangTimeoutMax)
}
