// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// What becomes of a consistent read that the cache could not serve in time, as
// metrics name it.
const (
	staleFromStorage = "storage"
	staleRefused     = "refused"
)

// staleReads lets a few of the consistent reads for which the cache did not
// become fresh in time through to storage: no more at a time than it has
// places, and no more in any period. The reads of a stale cache time out
// together; a bound on how many are under way alone would let all of them
// through one after another, as fast as storage answers.
type staleReads struct {
	clock  clock.PassiveClock
	period time.Duration

	mu struct {
		sync.Mutex
		places []stalePlace
	}
}

type stalePlace struct {
	taken bool
	since time.Time // when it was last taken
}

func newStaleReads(config Config) *staleReads {
	// A reader waits for FreshnessTimeout before it asks for a place. With
	// that for the period, one that reads again and again always gets one.
	s := &staleReads{clock: config.Clock, period: config.FreshnessTimeout}
	s.mu.places = make([]stalePlace, max(0, config.StaleReads))
	return s
}

// enter takes a place, to be left when the read has ended. It returns nil if
// there is none.
func (s *staleReads) enter() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	for i := range s.mu.places {
		place := &s.mu.places[i]
		if place.taken || (!place.since.IsZero() && now.Sub(place.since) < s.period) {
			continue
		}
		*place = stalePlace{taken: true, since: now}
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			place.taken = false
		}
	}
	return nil
}
