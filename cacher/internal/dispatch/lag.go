// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// measure sets the metrics of the watchers that catch up: how many there are, and
// how far the worst and the median of all watchers are behind the dispatcher.
// Live watchers are not behind, so its time depends on the others only. It holds no lock
// meanwhile.
func (s *supervisor) measure(stats watchcache.Stats, now time.Duration) {
	live, cursor := s.registry.reached()
	parked, starting := 0, 0
	behind := make([]watchcache.Position, 0, len(s.seen)) // where they are
	for _, r := range s.seen {
		if r.begins {
			starting++
		} else {
			parked++
		}
		if at := watchcache.Position(r.at.Load()); at < cursor {
			behind = append(behind, at)
		}
	}
	s.metrics.SetWatchers(metrics.WatcherParked, parked)
	s.metrics.SetWatchers(metrics.WatcherStarting, starting)
	slices.SortFunc(behind, func(a, b watchcache.Position) int { return cmp.Compare(a, b) })
	lag := func(rank metrics.WatcherRank, i int) {
		if i >= len(behind) {
			s.metrics.SetWatcherLag(rank, 0, 0)
			return
		}
		s.metrics.SetWatcherLag(rank, uint64(cursor-behind[i]), s.age(behind[i], stats, now))
	}
	lag(metrics.WatcherWorst, 0)
	lag(metrics.WatcherMedian, (live+parked+starting)/2)
}

// age returns how long ago the cache got the event at a position, or the oldest
// one that it still has.
func (s *supervisor) age(at watchcache.Position, stats watchcache.Stats, now time.Duration) time.Duration {
	var event [1]*watchcache.Event
	n, _, err := s.state.Since(max(at, stats.Oldest), event[:])
	if err != nil || n == 0 {
		return 0
	}
	return max(0, now-time.Duration(event[0].Received))
}
