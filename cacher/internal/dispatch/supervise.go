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

// holdFor is for how long the window waits for a new watcher that makes no
// progress: longer than the pauses of a client that is merely slow.
const holdFor = 3 * time.Second

// supervisor looks at the watchers that catch up, once a second while there are any, and
// ends watchers that make no progress, or keep too much memory. A replayer can't do this
// for itself, because it may be blocked in a send. A look is one goroutine, started by the
// dispatcher's tick and awaited by the owner of tasks. supervisor.mu is never held with
// another lock.
type supervisor struct {
	*Fanout

	mu struct {
		sync.Mutex
		// due: a look must come even if no watcher catches up then. looking: one is under
		// way.
		due, looking bool
		// held is from where on the window is kept, and newcomers from where on replayers
		// need it that were added since the look began.
		held, newcomers watchcache.Position
	}
}

// nothing is the position of what no watcher needs.
const nothing = watchcache.Position(math.MaxUint64)

// hold holds the window for a new watcher at once, since many events may come before the
// next look.
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

// tick starts a look, unless there is nothing to look at or the last look is still under
// way. It does not wait.
func (s *supervisor) tick(catchingUp int) {
	s.mu.Lock()
	begins := !s.mu.looking && (s.mu.due || catchingUp > 0)
	s.mu.looking = s.mu.looking || begins
	s.mu.Unlock()
	if begins {
		s.Tasks.Run(s.look) // which does not run once the cache is stopping
	}
}

// look ends expired watchers, measures the memory held by the rest, and pins the window
// for watchers that are still catching up.
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
			still = min(still, watchcache.Position(r.at.Load())) // next goes back
		}
	}
	s.bound(snapshots, stats)
	s.measure(all, cursor, stats, now)
	s.keep(still, len(all) > 0)
}

// keep ends a look: it pins the window from still on, and for newcomers. due is whether
// another look must come.
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

// judge returns whether a watcher must end on its own account, and the reason: its
// position has left the window, or its initial events have stalled.
func (r *replayer) judge(now time.Duration, oldest watchcache.Position) (reason metrics.EndReason, ends bool) {
	initial := r.initial.Load()
	// Not next, which goes back when the replayer leaves events for later.
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

// bound ends the watchers with the heaviest snapshots, so that the remaining snapshots
// stay within InitialEventsBytes.
func (s *supervisor) bound(snapshots map[watchcache.Position][]*replayer, stats watchcache.Stats) {
	weight := func(of []*replayer) int64 { return watchcache.Retained{}.With(of[0].mark, stats).Bytes() }
	all := slices.SortedFunc(maps.Values(snapshots), func(a, b []*replayer) int { // the lightest first, then the youngest
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

// measure sets the metrics of the watchers that catch up: how many there are, and how far
// the worst and the median of all watchers are behind the dispatcher.
func (s *supervisor) measure(all []*replayer, cursor watchcache.Position, stats watchcache.Stats, now time.Duration) {
	count := s.registry.counts()
	behind := make([]watchcache.Position, 0, len(all)) // where they are
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
