// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Admission limits how many consistent reads that timed out on the cache fall back to storage, both
// at a time and in any period. A limit on concurrent reads alone would let all reads of a stale
// cache through one after another, as fast as storage answers.
type Admission struct {
	clock  clock.PassiveClock
	period time.Duration

	mu struct {
		sync.Mutex
		// free has, for each slot not in use, the time at which it becomes available.
		free []time.Time
	}
}

// NewAdmission admits up to most reads at a time and in any period.
func NewAdmission(clock clock.PassiveClock, most int, period time.Duration) *Admission {
	a := &Admission{clock: clock, period: period}
	a.mu.free = make([]time.Time, max(0, most))
	return a
}

// Enter takes a slot, or returns nil if none is free. The caller must call leave after the read.
func (a *Admission) Enter() (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	at := slices.IndexFunc(a.mu.free, func(from time.Time) bool { return !now.Before(from) })
	if at < 0 {
		return nil
	}
	a.mu.free = slices.Delete(a.mu.free, at, at+1)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.mu.free = append(a.mu.free, now.Add(a.period))
	}
}
