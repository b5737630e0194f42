// SPDX-License-Identifier: Apache-2.0

// Package setclock simulates a settable clock, for tests in testing/synctest bubbles.
package setclock

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"k8s.io/utils/clock"
)

// Clock is a clock whose times have a monotonic reading, like a machine's and unlike a bubble's.
// Its timers are the bubble's. The zero value is ready to use, and safe for concurrent use.
type Clock struct {
	clock.RealClock
	by    atomic.Int64 // seconds
	stood atomic.Int64 // nanoseconds
}

// monotonic is the layout of a time.Time with a monotonic reading. TestClock verifies it.
type monotonic struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

// epoch is the start of the seconds in a time with a monotonic reading.
var epoch = time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// Now implements clock.PassiveClock.
func (c *Clock) Now() time.Time {
	now := time.Now().Add(time.Duration(c.stood.Load()))
	seconds := uint64(now.Unix() + c.by.Load() - epoch)
	forged := monotonic{wall: 1<<63 | seconds<<30 | uint64(now.Nanosecond()), ext: now.UnixNano()}
	return *(*time.Time)(unsafe.Pointer(&forged))
}

// Since implements clock.PassiveClock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Set moves the time of day by whole seconds. The passage of time does not change.
func (c *Clock) Set(by time.Duration) { c.by.Add(int64(by / time.Second)) }

// Stand simulates a machine that stood still for d.
func (c *Clock) Stand(d time.Duration) { c.stood.Add(int64(d)) }

// Stand moves the clock ahead by d at once, as after a machine stood still.
func (c *Clock) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	deadline := c.Now().Add(d)
	ctx, cancel := context.WithTimeout(parent, d)
	return withDeadline{ctx, deadline}, cancel
}

type withDeadline struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (c withDeadline) Deadline() (time.Time, bool) { return c.deadline, true }
