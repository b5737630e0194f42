// SPDX-License-Identifier: Apache-2.0

// Package timeline measures time for a running cache.
package timeline

import (
	"time"

	"k8s.io/utils/clock"
)

// Timeline measures the time since it was made. Setting the machine's clock does not affect it,
// because Since uses monotonic readings. Unix and Truncate lose these, and so must not decide when
// something is due.
type Timeline struct {
	clock clock.PassiveClock
	start time.Time
}

// New returns a timeline that begins now.
func New(clock clock.PassiveClock) Timeline {
	return Timeline{clock: clock, start: clock.Now()}
}

// Now returns the time since the timeline began.
func (t Timeline) Now() time.Duration { return t.clock.Since(t.start) }

// At converts a time to the timeline, with its monotonic reading if it has one.
func (t Timeline) At(when time.Time) time.Duration {
	now := t.clock.Now()
	return now.Sub(t.start) + when.Sub(now)
}
