// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Admission lets a few of the consistent reads that have waited for the cache in vain
// through to storage: no more than there are slots at a time, and in any period. A bound
// on the reads under way alone would let all reads of a stale cache through one after
// another, as fast as storage answers.
type Admission struct {
	clock  clock.PassiveClock
	period time.Duration

	mu struct {
		sync.Mutex
		slots []slot
	}
}

// slot is the right of one read at a time to go to storage.
type slot struct {
	taken bool
	since time.Time // when the slot was last taken
}

// NewAdmission admits up to most reads at a time, and in any period.
func NewAdmission(clock clock.PassiveClock, most int, period time.Duration) *Admission {
	a := &Admission{clock: clock, period: period}
	a.mu.slots = make([]slot, max(0, most))
	return a
}

// Enter takes a slot, which leave gives back when the read has ended. leave is
// nil if no slot is free.
func (a *Admission) Enter() (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	for i := range a.mu.slots {
		s := &a.mu.slots[i]
		if s.taken || (!s.since.IsZero() && now.Sub(s.since) < a.period) {
			continue
		}
		*s = slot{taken: true, since: now}
		return func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			s.taken = false
		}
	}
	return nil
}
