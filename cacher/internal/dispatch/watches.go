// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"reflect"
	"runtime"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// phase is the phase of a watch.
type phase uint8

const (
	live     phase = iota // the dispatcher feeds it
	starting              // its initial events, or the events since its start, are on their way
	parked                // it has been live, and catches up
)

var states = [...]status.State{live: status.Live, starting: status.Starting, parked: status.Parked}

// row is a watcher in a list of watchers, with its sort keys.
type row struct {
	watcher        *watcher
	id             uint64 // the watcher's
	phase          phase
	at             watchcache.Position // of the event that it looks at, unless live
	lag, delivered uint64
	queued         int
	bytes          int64
}

// rowLocked describes one watcher, but for its channel.
func (r *registry) rowLocked(w *watcher) row {
	out := row{watcher: w, id: w.id, delivered: w.sent, at: w.position}
	if w.live {
		return out
	}
	out.phase = parked
	if p := w.replayer; p != nil {
		out.at = watchcache.Position(p.at.Load())
		out.delivered += p.taken.Load()
		if p.begins {
			out.phase = starting
		}
	}
	if out.at < r.mu.cursor {
		out.lag = uint64(r.mu.cursor - out.at)
	}
	return out
}

// settle adds the count of the watcher's replayer to the watcher's own.
func (w *watcher) settle() {
	if w.replayer != nil {
		w.sent += w.replayer.taken.Load()
		w.replayer = nil
	}
}

// rowsAtOnce is how many watchers are described while the lock is held: this takes no longer
// than an event for so many watchers.
const rowsAtOnce = 256

// rows describes all watchers. Watchers that come or go meanwhile may be missing.
func (r *registry) rows(stats watchcache.Stats) []row {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]row, 0, len(r.mu.all))
	inTurns(&r.mu, r.mu.all, func(w *watcher) {
		if !w.expelled && !w.ended {
			row := r.rowLocked(w)
			row.queued = len(w.result)
			row.bytes = w.bytesLocked(row.queued, stats)
			out = append(out, row)
		}
	})
	return out
}

// inTurns visits the members of a set that a lock guards, which the caller holds.
// The lock is given up again and again, so that no event waits for the whole. The
// set may change meanwhile: Go's maps allow that, and produce no member twice.
func inTurns[M any](lock sync.Locker, all map[uint64]M, visit func(M)) {
	turn := 0
	for _, m := range all {
		if turn == rowsAtOnce {
			lock.Unlock()
			runtime.Gosched() // so that a goroutine that waits for the lock gets it
			lock.Lock()
			turn = 0
		}
		turn++
		visit(m)
	}
}

// bytesLocked estimates the memory that is there for the watch: its channel, the objects of
// the events in it, and the state that it is sent.
func (w *watcher) bytesLocked(queued int, stats watchcache.Stats) int64 {
	bytes := int64(cap(w.result)) * int64(reflect.TypeFor[watch.Event]().Size())
	if stats.Objects > 0 {
		bytes += int64(queued) * (stats.ObjectBytes / int64(stats.Objects))
	}
	if p := w.replayer; p != nil && p.begins && p.initial.Load() {
		bytes += watchcache.Retained{}.With(p.mark, stats).Bytes()
	}
	return bytes
}

// Watches describes one page of the watches, and counts all of them. Watches
// holds the registry's lock no longer than an event does.
func (f *Fanout) Watches(p status.Query) ([]status.Watcher, status.Counts) {
	stats := f.replays.state.Stats()
	rows := f.registry.rows(stats)
	var counts status.Counts
	worst := watchcache.Position(0)
	for i := range rows {
		switch rows[i].phase {
		case live:
			counts.Live++
		case starting:
			counts.Starting++
		case parked:
			counts.Parked++
		}
		if rows[i].lag > counts.WorstLag {
			counts.WorstLag, worst = rows[i].lag, rows[i].at
		}
	}
	if counts.WorstLag > 0 {
		counts.WorstLagSeconds = ageOf(f.replays.state, worst, stats, f.time.Now()).Seconds()
	}
	page := pageOf(rows, p)
	out := make([]status.Watcher, len(page))
	for i := range page {
		out[i] = f.describe(&page[i], stats)
	}
	return out, counts
}

func (f *Fanout) describe(r *row, stats watchcache.Stats) status.Watcher {
	w := r.watcher
	s := status.Watcher{
		ID: w.id, Client: w.client.Value(), Key: w.group.Name.Key, LabelSelector: w.group.Name.Label, FieldSelector: w.group.Name.Field,
		State: states[r.phase], Parked: r.phase != live, Lag: r.lag,
		Queued: r.queued, Capacity: cap(w.result), Delivered: r.delivered, HeldBytes: r.bytes, Started: w.started,
	}
	if r.lag > 0 {
		s.LagSeconds = ageOf(f.replays.state, r.at, stats, f.time.Now()).Seconds()
	}
	return s
}

// ageOf returns how long ago the cache got the event at a position, or the oldest
// one that it still has.
func ageOf(state *watchcache.State, at watchcache.Position, stats watchcache.Stats, now time.Duration) time.Duration {
	var event [1]*watchcache.Event
	n, _, err := state.Since(max(at, stats.Oldest), event[:])
	if err != nil || n == 0 {
		return 0
	}
	return max(0, now-time.Duration(event[0].Received))
}
