// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"
	"time"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// historyStep is the time between two samples of a cache that is awake, and
	// historyKept how many are kept: ten minutes, in about 6 KB.
	historyStep = 5 * time.Second
	historyKept = 120
)

// moment is the counters of an awake cache at one time.
type moment struct {
	time                      time.Time
	passed                    time.Duration // on the engine's timeline
	events, delivered, reads  uint64
	watchers, behind, objects int
	worst                     uint64
}

// history is the samples of the last ten minutes. The dispatcher takes them,
// while the cache is awake: there is no goroutine for it, and a cache that sleeps
// has a gap.
type history struct {
	mu struct {
		sync.Mutex
		ring []status.Sample
		next int // the slot of the next sample, once the ring is full
	}
}

// add adds the sample between two moments.
func (h *history) add(from, to moment) {
	s := status.Sample{
		Time: to.time, Seconds: (to.passed - from.passed).Seconds(),
		Events: to.events - from.events, Delivered: to.delivered - from.delivered, Reads: to.reads - from.reads,
		Watchers: to.watchers, CatchingUp: to.behind, WorstLagEvents: to.worst, Objects: to.objects,
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.mu.ring) < historyKept {
		h.mu.ring = append(h.mu.ring, s)
		return
	}
	h.mu.ring[h.mu.next] = s
	h.mu.next = (h.mu.next + 1) % historyKept
}

// samples returns the samples of the ten minutes before now, the oldest first.
func (h *history) samples(now time.Time) []status.Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]status.Sample, 0, len(h.mu.ring))
	for i := range h.mu.ring {
		s := h.mu.ring[(h.mu.next+i)%len(h.mu.ring)]
		if now.Sub(s.Time) <= historyKept*historyStep {
			out = append(out, s)
		}
	}
	return out
}

// remember adds a sample to the history if it is time. The dispatcher calls it
// once a second.
func (e *engine) remember() {
	passed := e.time.Now()
	if passed-e.remembered.passed < historyStep {
		return
	}
	now := e.moment(passed)
	e.history.add(e.remembered, now)
	e.remembered = now
}

func (e *engine) moment(passed time.Duration) moment {
	stats, totals := e.state.Stats(), e.metrics.Totals()
	live, behind := e.fanout.Counts()
	m := moment{
		time: e.config.Clock.Now(), passed: passed, delivered: totals.Delivered,
		watchers: live + behind, behind: behind, worst: e.fanout.WorstLag(), objects: stats.Objects,
	}
	for typ, n := range totals.Events {
		if typ != metrics.EventBookmark.String() {
			m.events += n
		}
	}
	for _, decisions := range totals.Reads {
		for _, n := range decisions {
			m.reads += n
		}
	}
	return m
}
