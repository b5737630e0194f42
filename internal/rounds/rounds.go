// SPDX-License-Identifier: Apache-2.0

// Package rounds says when the dispatcher of a cache sends watchers several events in
// turn. Nobody but tests changes that. The package holds one pointer for the process,
// and has no lock and no goroutine.
package rounds

import "sync/atomic"

// Limits say from when on events go to watchers in rounds.
type Limits struct {
	// Watchers is how many watchers the event before must have gone to.
	Watchers int
	// Queued is how many events the dispatcher must have found at once.
	Queued int
	// Events is how many events a round has at the most. A round never has more than
	// the channel of a watcher holds.
	Events int
	// OneCore: there are rounds where goroutines run one at a time, too.
	OneCore bool
}

// Defaults are the limits of a cache outside of tests. Rounds gain nothing that can be
// measured with 512 watchers or fewer.
var Defaults = Limits{Watchers: 512, Queued: 8, Events: 64}

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
