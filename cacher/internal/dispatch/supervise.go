// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
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
	state    *watchcache.State
	registry *registry
	time     timeline.Timeline
	metrics  *metrics.Resource
	tasks    *tasks.Group
	// initial and bytes are Config's InitialEventsTimeout and InitialEventsBytes.
	initial time.Duration
	bytes   int64

	// idle: the list was empty at the last look, and no replayer has come since.
	// The field is written with mu held.
	idle    atomic.Bool
	looking atomic.Bool

	mu struct {
		sync.Mutex
		all []*replayer
		// held is the pinned part of the window. newcomers is the part that replayers
		// need that were added since the list was copied.
		held, newcomers wanted
	}

	// Scratch of the one look that is under way.
	seen    []*replayer
	holders map[watchcache.Position]*holder
}

// wanted is the part of the window that watchers have still to get: all from a position
// on, or nothing.
type wanted struct {
	from watchcache.Position
	some bool
}

// extend has the part begin no later than at from, and reports whether it began later.
func (w *wanted) extend(from watchcache.Position) bool {
	if w.some && w.from <= from {
		return false
	}
	w.from, w.some = from, true
	return true
}

// holder is the snapshot at one position, and the watchers that are sent it.
type holder struct {
	mark     watchcache.Mark
	weight   int64 // what it keeps in memory, in bytes
	watchers []*replayer
}

// add adds a watcher to the supervised ones. It pins the window for a new watcher at
// once, since many events may come before the next look.
func (s *supervisor) add(r *replayer) {
	r.moved = s.time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.slot = len(s.mu.all)
	s.mu.all = append(s.mu.all, r)
	s.idle.Store(false)
	if from := r.position(); r.begins {
		s.mu.newcomers.extend(from)
		if s.mu.held.extend(from) {
			s.state.Hold(from)
		}
	}
}

// remove does nothing if the replayer was removed before.
func (s *supervisor) remove(r *replayer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.slot < 0 {
		return
	}
	last := len(s.mu.all) - 1
	moved := s.mu.all[last]
	s.mu.all[r.slot], moved.slot = moved, r.slot
	s.mu.all[last] = nil
	s.mu.all = s.mu.all[:last]
	r.slot = -1
}

func (s *supervisor) list() []*replayer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.all) == 0 {
		s.idle.Store(true)
		s.mu.all, s.seen = nil, nil // there may have been many
	}
	s.mu.newcomers = wanted{}
	return append(s.seen[:0], s.mu.all...)
}

// tick starts a look, unless the list is empty or the last look is still under
// way. It does not wait.
func (s *supervisor) tick() {
	if s.idle.Load() || !s.looking.CompareAndSwap(false, true) {
		return
	}
	if !s.tasks.Run(func() {
		s.look()
		s.looking.Store(false)
	}) {
		s.looking.Store(false)
	}
}

// look ends expired watchers, measures the memory held by the rest, and pins the window
// for watchers that are still catching up.
func (s *supervisor) look() {
	now, stats := s.time.Now(), s.state.Stats()
	s.holders = make(map[watchcache.Position]*holder)
	s.seen = s.list()
	var still wanted
	for _, r := range s.seen {
		reason, ends := s.judge(r, now, stats.Oldest)
		if ends {
			r.expel(reason)
			continue
		}
		if r.initial.Load() {
			s.holds(r, stats)
		}
		if r.begins && now-r.moved < holdFor {
			still.extend(watchcache.Position(r.at.Load())) // next goes back
		}
	}
	s.keep(still)
	s.bound(stats)
	s.measure(stats, now)
	clear(s.seen)
	s.holders = nil
}

// keep pins the window from still on, and for newcomers.
func (s *supervisor) keep(still wanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.newcomers.some {
		still.extend(s.mu.newcomers.from)
	}
	s.mu.held = still
	if still.some {
		s.state.Hold(still.from)
	} else {
		s.state.ReleaseHold()
	}
}

// judge returns whether a watcher must end on its own account, and the reason: its
// position has left the window, or its initial events have stalled.
func (s *supervisor) judge(r *replayer, now time.Duration, oldest watchcache.Position) (reason metrics.EndReason, ends bool) {
	initial := r.initial.Load()
	// Not next, which goes back when the replayer leaves events for later.
	if progress := r.taken.Load() + r.at.Load(); progress != r.progress {
		r.progress, r.moved = progress, now
	}
	switch {
	case r.position() < oldest && !r.isWhole():
		return metrics.EndExpired, true
	case initial && s.initial > 0 && now-r.moved >= s.initial:
		return metrics.EndStalled, true
	}
	return 0, false
}

// holds notes that the watcher keeps its snapshot.
func (s *supervisor) holds(r *replayer, stats watchcache.Stats) {
	h := s.holders[r.mark.Position]
	if h == nil {
		h = &holder{mark: r.mark, weight: watchcache.Retained{}.With(r.mark, stats).Bytes()}
		s.holders[r.mark.Position] = h
	}
	h.watchers = append(h.watchers, r)
}

// bound ends the watchers with the heaviest snapshots, so that the remaining snapshots
// stay within s.bytes.
func (s *supervisor) bound(stats watchcache.Stats) {
	all := make([]*holder, 0, len(s.holders))
	for _, h := range s.holders {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *holder) int { // the lightest first, then the youngest
		return cmp.Or(cmp.Compare(a.weight, b.weight), cmp.Compare(b.mark.Position, a.mark.Position))
	})
	kept := watchcache.Retained{}
	for i, h := range all {
		with := kept.With(h.mark, stats)
		if with.Bytes() <= s.bytes {
			kept = with
			continue
		}
		for _, h := range all[i:] {
			for _, r := range h.watchers {
				r.expel(metrics.EndHeavy)
			}
		}
		all = all[:i]
		break
	}
	s.metrics.SetInitialSnapshots(len(all))
	s.metrics.SetBytes(metrics.BytesSnapshots, kept.Bytes())
}

// measure sets the metrics of the watchers that catch up: how many there are, and how far
// the worst and the median of all watchers are behind the dispatcher.
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
		s.metrics.SetWatcherLag(rank, uint64(cursor-behind[i]), ageOf(s.state, behind[i], stats, now))
	}
	lag(metrics.WatcherWorst, 0)
	lag(metrics.WatcherMedian, (live+parked+starting)/2)
}
