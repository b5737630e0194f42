// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// holdFor is the maximum time that we hold the window for a new watcher without progress. It
// exceeds the pauses of a slow client.
const holdFor = 3 * time.Second

// supervisor ends starting and parked watchers that make no progress or hold too much memory. A
// replayer can't do this itself, because it may be blocked in a send. Once a second the dispatcher
// starts a look, which is one goroutine. supervisor.mu is never held with another lock.
type supervisor struct {
	*Fanout

	mu struct {
		sync.Mutex
		// due is true if a look is needed without starting or parked watchers. looking is true
		// during one.
		due, looking bool
		// held is the first position held in the window, newcomers the first needed by replayers
		// added since the look began.
		held, newcomers watchcache.Position
	}
}

// nothing is the position after all events.
const nothing = watchcache.Position(math.MaxUint64)

// hold holds the window for a new watcher now: many events may arrive before the next look.
func (s *supervisor) hold(r *replayer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.due = true
	from := r.position()
	s.mu.newcomers = min(s.mu.newcomers, from)
	if from < s.mu.held {
		s.mu.held = from
		s.State.Hold(from)
	}
}

// tick starts a look if one is needed and none is running. It does not block.
func (s *supervisor) tick(catchingUp int) {
	s.mu.Lock()
	begins := !s.mu.looking && (s.mu.due || catchingUp > 0)
	s.mu.looking = s.mu.looking || begins
	s.mu.Unlock()
	if begins {
		s.Tasks.Run(s.look) // no-op if the cache is stopping
	}
}

// look ends watchers, and holds the window for starting ones that make progress.
func (s *supervisor) look() {
	s.mu.Lock()
	s.mu.newcomers = nothing
	s.mu.Unlock()
	now, stats := s.Time.Now(), s.State.Stats()
	all, cursor := s.registry.replayers()
	snapshots := make(map[watchcache.Position][]*replayer)
	still := nothing
	for _, r := range all {
		if reason, ends := r.judge(now, stats.Oldest); ends {
			s.registry.expel(r, reason, nil)
			continue
		}
		if r.initial.Load() {
			snapshots[r.mark.Position] = append(snapshots[r.mark.Position], r)
		}
		if r.watcher.is(starting) && now-r.moved < holdFor {
			still = min(still, watchcache.Position(r.at.Load())) // next is after the current batch
		}
	}
	s.bound(snapshots, stats)
	s.measure(all, cursor, stats, now)
	s.keep(still, len(all) > 0)
}

// keep ends a look. It holds the window from still on, and for newcomers.
func (s *supervisor) keep(still watchcache.Position, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.held = min(still, s.mu.newcomers)
	s.mu.looking, s.mu.due = false, due || s.mu.held != nothing
	if s.mu.held != nothing {
		s.State.Hold(s.mu.held)
	} else {
		s.State.ReleaseHold()
	}
}

// judge returns why a watcher must end: one of its events may have been evicted, or its initial
// events stalled.
func (r *replayer) judge(now time.Duration, oldest watchcache.Position) (reason metrics.EndReason, ends bool) {
	initial := r.initial.Load()
	// at moves with every event, next only with every batch.
	if progress := r.watcher.sent.Load() + r.at.Load() + r.scanned.Load(); progress != r.progress {
		r.progress, r.moved = progress, now
	}
	switch {
	case r.position() < oldest && !r.canContinue():
		return metrics.EndExpired, true
	case initial && r.InitialEventsTimeout > 0 && now-r.moved >= r.InitialEventsTimeout:
		return metrics.EndStalled, true
	}
	return 0, false
}

// bound ends the watchers with the heaviest snapshots until the others fit InitialEventsBytes.
func (s *supervisor) bound(snapshots map[watchcache.Position][]*replayer, stats watchcache.Stats) {
	weight := func(of []*replayer) int64 { return watchcache.Retained{}.With(of[0].mark, stats).Bytes() }
	all := slices.SortedFunc(maps.Values(snapshots), func(a, b []*replayer) int { // lightest first, then youngest
		return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(b[0].mark.Position, a[0].mark.Position))
	})
	kept := watchcache.Retained{}
	for i, of := range all {
		with := kept.With(of[0].mark, stats)
		if with.Bytes() <= s.InitialEventsBytes {
			kept = with
			continue
		}
		for _, r := range slices.Concat(all[i:]...) {
			s.registry.expel(r, metrics.EndHeavy, nil)
		}
		all = all[:i]
		break
	}
	s.Metrics.SetInitialSnapshots(len(all))
	s.Metrics.SetBytes(metrics.BytesSnapshots, kept.Bytes())
}

// measure sets the metrics of starting and parked watchers, among them the lag of the worst and the
// median of all watchers.
func (s *supervisor) measure(all []*replayer, cursor watchcache.Position, stats watchcache.Stats, now time.Duration) {
	count := s.registry.counts()
	behind := make([]watchcache.Position, 0, len(all)) // positions
	for _, r := range all {
		if at := watchcache.Position(r.at.Load()); at < cursor {
			behind = append(behind, at)
		}
	}
	s.Metrics.SetWatchers(metrics.WatcherParked, count[parked])
	s.Metrics.SetWatchers(metrics.WatcherStarting, count[starting])
	slices.Sort(behind)
	for rank, i := range map[metrics.WatcherRank]int{metrics.WatcherWorst: 0, metrics.WatcherMedian: (count[live] + len(all)) / 2} {
		lag, age := uint64(0), time.Duration(0)
		if i < len(behind) {
			lag, age = uint64(cursor-behind[i]), ageOf(s.State, behind[i], stats, now)
		}
		s.Metrics.SetWatcherLag(rank, lag, age)
	}
}
