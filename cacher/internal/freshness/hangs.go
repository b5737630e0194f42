// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"time"
)

const (
	// hangTimeout and hangTimeoutMax bound how long a watch may make no progress,
	// although storage has reported a later version and progress was requested. The time
	// doubles with each watch that is given up in vain, from the second one on.
	hangTimeout    = 400 * time.Millisecond
	hangTimeoutMax = 10 * time.Second
	// hangCheckTimeout, and a part of the time without progress, bound the version
	// request that precedes giving up a watch: another watch is no help while storage is
	// slow to answer anything.
	hangCheckTimeout = time.Second
	hangCheckPart    = 4
	// vainWatches is how many watches in a row, each opened in place of one that hung,
	// make no progress before storage counts as silent.
	vainWatches = 2
)

// Watch is the storage's watch that feeds the cache.
type Watch interface {
	// Received returns how many times the watch has brought the cache further, and
	// when it last has.
	Received() (times int64, last time.Time)
	// Busy reports whether the watch has brought something that the feed has
	// not taken yet.
	Busy() bool
	// GiveUp has another watch opened in place of this one. It never
	// blocks.
	GiveUp()
}

// hangDetector finds out that the cache's watch hangs, as a watch does that an
// unresponsive member of etcd serves: gRPC notices after half a minute, if at
// all. It belongs to the progress requester's goroutine.
//
// A watch is kept if nothing happens, if it brings events slowly or the feed is behind
// it, and if storage does not answer: another watch would bring no more.
type hangDetector struct {
	*ProgressConfig
	markSilent func() // called after vainWatches, in place of giving up another watch

	// The last look: the watch, its count of events and reports, and the version that the
	// cache had reached, which is later than the count. since is when the
	// wait for something that is due began, zero if nothing is due; looked is when the
	// wait was last seen.
	watch   Watch
	heard   int64
	at      uint64
	since   time.Time
	looked  time.Time
	timeout time.Duration // since a watch was slow; see patience
	again   bool          // a watch was given up, and nothing was heard since
	vain    int           // the watches opened since then that have made no progress
}

// look gives up the watch if it hangs. It is called before each progress request, so that
// the answer counts as later progress.
func (h *hangDetector) look(ctx context.Context) {
	w, now, at := h.Storage.CurrentWatch(), h.Clock.Now(), h.Waiting.At()
	if w == nil || w.Busy() || h.Versions.Highest() <= at {
		h.adapt(w)
		h.watch, h.since = w, time.Time{}
		return
	}
	if heard, _ := w.Received(); w != h.watch || heard != h.heard || at != h.at || h.since.IsZero() {
		if h.adapt(w); w != h.watch && heard > 0 {
			h.again, h.vain = false, 0
		}
		h.watch, h.heard, h.at, h.since, h.looked = w, heard, at, now, now
		return
	}
	h.looked = now
	waited := now.Sub(h.since)
	if waited < h.patience() {
		return
	}
	ahead, answered := h.ahead(ctx, min(waited/hangCheckPart, hangCheckTimeout))
	if !answered {
		h.timeout = min(2*h.patience(), hangTimeoutMax)
	}
	if !ahead {
		h.since = h.Clock.Now()
		return
	}
	if h.again {
		h.timeout = min(2*h.patience(), hangTimeoutMax)
		h.vain++
	}
	h.again, h.since = true, time.Time{}
	if h.vain == vainWatches {
		h.again, h.vain = false, 0
		h.markSilent()
		return
	}
	h.Storage.WatchHung(waited)
	w.GiveUp()
}

// patience returns how long the watch may make no progress: hangTimeout or the time that
// storage's reports take, or longer since watches were slow.
func (h *hangDetector) patience() time.Duration { return max(hangTimeout, h.ReportDelay, h.timeout) }

// ahead asks storage whether it has a version that the cache has not reached. answered is
// false if the answer takes longer than within.
func (h *hangDetector) ahead(ctx context.Context, within time.Duration) (ahead, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	v, err := h.Versions.Current(ctx)
	return err == nil && v.Current > h.Waiting.At(), err == nil
}

// adapt adapts the timeout to the time that the watch took to make progress. There are no
// looks while no read waits: the last event may have come long after the event that
// reads waited for, until which there was a look each progressInterval.
func (h *hangDetector) adapt(w Watch) {
	if w == nil || w != h.watch || h.since.IsZero() {
		return
	}
	heard, last := w.Received()
	if heard == h.heard {
		return
	}
	h.again, h.vain = false, 0
	if came := h.looked.Add(progressInterval); last.After(came) {
		last = came
	}
	took := last.Sub(h.since)
	h.timeout = min(2*took, hangTimeoutMax)
}
