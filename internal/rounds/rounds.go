// SPDX-License-Identifier: Apache-2.0

// Package rounds holds the limits above which a dispatcher sends watchers several events in turn.
// Only tests change them. The package holds one atomic pointer per process, without locks or
// goroutines.
package rounds

import "sync/atomic"

// Limits are the conditions for rounds.
type Limits struct {
	// Watchers is the minimum number of watchers that got the previous event.
	Watchers int
	// Queued is the minimum number of events waiting for the dispatcher.
	Queued int
	// Events is the maximum number of events in a round. The capacity of a watcher's channel also
	// limits it.
	Events int
	// OneCore also allows rounds where goroutines run one at a time.
	OneCore bool
}

// Defaults are the limits outside of tests. Rounds gain nothing measurable with 512 watchers or
// fewer.
var Defaults = Limits{Watchers: 512, Queued: 8, Events: 64}

var current atomic.Pointer[Limits]

// Current returns the limits for caches that start now.
func Current() Limits {
	if set := current.Load(); set != nil {
		return *set
	}
	return Defaults
}

// Set sets the limits for caches that start later, in tests.
func Set(limits Limits) { current.Store(&limits) }
