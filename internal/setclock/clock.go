// SPDX-License-Identifier: Apache-2.0

// Package setclock has the clock of a machine whose time of day is set, for tests in
// the bubbles of testing/synctest.
package setclock

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"k8s.io/utils/clock"
)

// Clock is a clock whose times have a monotonic reading, as those of a machine have
// and those of a bubble don't. Its timers are those of the bubble. The zero value is
// ready for use, and safe for concurrent use.
type Clock struct {
	clock.RealClock
	by    atomic.Int64 // seconds
	stood atomic.Int64 // nanoseconds
}

// monotonic is the layout of a time.Time that has a monotonic reading. TestClock
// checks that it is still so.
type monotonic struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

// epoch is where the seconds of a time with a monotonic reading begin.
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

// Set sets the time of day forward, or back, by whole seconds. Time passes as before.
func (c *Clock) Set(by time.Duration) { c.by.Add(int64(by / time.Second)) }

// Stand lets the machine stand still: so much time has passed at once.
func (c *Clock) Stand(d time.Duration) { c.stood.Add(int64(d)) }

// WithTimeout is context.WithTimeout on a machine with this clock: the deadline is one
// of its times.
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
