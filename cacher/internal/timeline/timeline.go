// SPDX-License-Identifier: Apache-2.0

// Package timeline is time as a running cache counts it. The package has no
// lock and no goroutine.
package timeline

import (
	"time"

	"k8s.io/utils/clock"
)

// Timeline counts the time that has passed since it was made. The machine's
// clock may be set, back or forward, without moving it: Since uses the monotonic
// reading that times of the real clock have. Unix and Truncate lose that reading,
// and so must not decide when something is due.
type Timeline struct {
	clock clock.PassiveClock
	start time.Time
}

// New returns a timeline that begins now.
func New(clock clock.PassiveClock) Timeline {
	return Timeline{clock: clock, start: clock.Now()}
}

// Now returns the time that has passed since the timeline began.
func (t Timeline) Now() time.Duration { return t.clock.Since(t.start) }

// At returns the place of a time on the timeline, as good as possible now: a time from
// elsewhere may have no monotonic reading.
func (t Timeline) At(when time.Time) time.Duration {
	now := t.clock.Now()
	return now.Sub(t.start) + when.Sub(now)
}
