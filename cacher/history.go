// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// historyStep is the time between two samples of a cache that is awake, and
	// historyKept how many are kept: ten minutes, in about 6 KB.
	historyStep = 5 * time.Second
	historyKept = 120
)

// HistorySample is what a cache did in the time up to one moment.
type HistorySample struct {
	Time time.Time `json:"time"`
	// Seconds is the length of the time, in which so many events came from
	// storage, were sent to watchers (once for each), and so many GETs and LISTs
	// were answered.
	Seconds   float64 `json:"seconds"`
	Events    uint64  `json:"events"`
	Delivered uint64  `json:"delivered"`
	Reads     uint64  `json:"reads"`
	// At its end so many watches were open, so many of them caught up, and the
	// worst one was so many events behind.
	Watchers       int    `json:"watchers"`
	CatchingUp     int    `json:"catchingUp"`
	WorstLagEvents uint64 `json:"worstLagEvents"`
	// Objects is how many objects the cache had.
	Objects int `json:"objects"`
}

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
		ring []HistorySample
		next int // the slot of the next sample, once the ring is full
	}
}

// add notes what was done between two moments.
func (h *history) add(from, to moment) {
	s := HistorySample{
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
func (h *history) samples(now time.Time) []HistorySample {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]HistorySample, 0, len(h.mu.ring))
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

// silence returns for how long storage was not heard of; false if it was not heard
// of at all since the cache is awake.
func (e *engine) silence() (time.Duration, bool) {
	at := e.contact.heardAt.Load()
	return max(0, e.time.Now()-time.Duration(at)), at > 0 || e.readiness.ready()
}
