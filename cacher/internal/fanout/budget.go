// SPDX-License-Identifier: Apache-2.0

package fanout

import "time"

// timeBudget is how long the dispatcher may still wait for watchers that are
// not ready. The budget refills evenly, to perSecond within a second.
type timeBudget struct {
	perSecond time.Duration
	left      time.Duration
	filled    time.Time
}

func newTimeBudget(perSecond time.Duration, now time.Time) timeBudget {
	return timeBudget{perSecond: perSecond, left: perSecond, filled: now}
}

// available returns what may be spent now; at most 0 if nothing.
func (b *timeBudget) available(now time.Time) time.Duration {
	if b.perSecond <= 0 {
		return 0
	}
	elapsed := min(now.Sub(b.filled), time.Second)
	b.left = min(b.perSecond, b.left+time.Duration(float64(b.perSecond)*elapsed.Seconds()))
	b.filled = now
	return b.left
}

// spend takes off what was spent; it may be more than was available, by what
// a timer is late.
func (b *timeBudget) spend(d time.Duration) { b.left -= d }
