// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"time"
)

const (
	// hangTimeout and hangTimeoutMax bound the time without progress after which a watch counts as
	// hung. It doubles with each fruitless replacement from the second one on.
	hangTimeout    = 400 * time.Millisecond
	hangTimeoutMax = 10 * time.Second
	// hangCheckTimeout and 1/hangCheckPart of the time without progress bound the version request
	// before a watch is given up. Another watch doesn't help while storage is slow to answer
	// anything.
	hangCheckTimeout = time.Second
	hangCheckPart    = 4
	// vainWatches is the number of fruitless replacements in a row after which storage is silent.
	vainWatches = 2
)

// Watch is the storage watch that feeds the cache.
type Watch interface {
	// Received returns the number of events and progress reports so far, and the time of the last.
	Received() (times int64, last time.Time)
	// Busy reports whether the feed has yet to take something the watch received.
	Busy() bool
	// GiveUp ends this watch so that the cache opens another. It never blocks.
	GiveUp()
}

// hangDetector detects a hung watch, which gRPC notices after half a minute, if at all. Owned by
// the progress requester's goroutine.
//
// It keeps a watch that is idle, slow or ahead of the feed, and any watch while storage doesn't
// answer.
type hangDetector struct {
	*ProgressConfig
	markSilent func() // called after vainWatches, instead of giving up another watch

	// State at the last look, with at read before heard. since is the start of the wait for overdue
	// progress, or zero; looked is when the wait was last observed.
	watch   Watch
	heard   int64
	at      uint64
	since   time.Time
	looked  time.Time
	timeout time.Duration // adapted to slow watches; see patience
	again   bool          // a watch was given up, without progress since
	vain    int           // fruitless replacements since then
}

// look gives up the watch if it hangs. It must precede each progress request, so that the answer
// counts as later progress.
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

func (h *hangDetector) patience() time.Duration { return max(hangTimeout, h.ReportDelay, h.timeout) }

// ahead reports whether storage is ahead of the cache. answered is false if storage fails or takes
// longer than within.
func (h *hangDetector) ahead(ctx context.Context, within time.Duration) (ahead, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	v, err := h.Versions.Current(ctx)
	return err == nil && v.Current > h.Waiting.At(), err == nil
}

// adapt sets the timeout to twice the time that the watch took to make progress. Nothing looks
// while no read waits, so the last event may be much later than the awaited one, which arrived
// within progressInterval of the last look.
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
