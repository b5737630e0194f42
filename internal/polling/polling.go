// SPDX-License-Identifier: Apache-2.0

// Package polling says when parked watchers have no goroutine of their own. Nobody but
// tests changes that. The package holds one pointer for the process, and has no lock
// and no goroutine.
package polling

import (
	"sync/atomic"
	"time"
)

// Limits say which watchers a cache polls, and how.
type Limits struct {
	// Goroutines is how many parked watchers may have a goroutine of their own.
	Goroutines int
	// AtOnce is how many polled watchers are brought further at a time, 0 for as many
	// as goroutines run at the same time.
	AtOnce int
	// Every is the time between two looks at a watcher that has just been sent something.
	// A watcher that does not read is looked at less and less often, up to 256 times as
	// seldom.
	Every time.Duration
	// Yield: a watcher without room is looked at once more after other goroutines have
	// run, before it waits.
	Yield bool
}

// Defaults are the limits of a cache outside of tests.
var Defaults = Limits{Goroutines: 256, Every: time.Millisecond, Yield: true}

var current atomic.Pointer[Limits]

// Current returns the limits of caches that start now.
func Current() Limits {
	if set := current.Load(); set != nil {
		return *set
	}
	return Defaults
}

// Set sets the limits of caches that start from now on, for tests.
func Set(limits Limits) { current.Store(&limits) }
