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

// shownAs maps a state to its name in status.
var shownAs = [...]status.State{starting: status.Starting, live: status.Live, parked: status.Parked}

// describeLocked describes one watcher, without Queued, HeldBytes and LagSeconds.
func (r *registry) describeLocked(w *watcher) status.Watcher {
	s := status.Watcher{
		ID: w.id, Client: w.client.Value(), Key: w.group.Name.Key, LabelSelector: short(w.group.Name.Label), FieldSelector: short(w.group.Name.Field),
		State: shownAs[w.state.Load()], Capacity: cap(w.result), Delivered: w.sent.Load(), Started: w.started,
	}
	if p := w.replayer; p != nil {
		s.Parked = true
		if at := watchcache.Position(p.at.Load()); at < r.mu.cursor {
			s.Lag = uint64(r.mu.cursor - at)
		}
	}
	return s
}

// rowsAtOnce is the number of watchers described before the lock is released. An event for as many
// holds it longer.
const rowsAtOnce = 256

// describe returns all watchers except ending ones, and the cursor. Watchers opened or closed
// meanwhile may be missing.
func (r *registry) describe(stats watchcache.Stats) (all []status.Watcher, cursor watchcache.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = make([]status.Watcher, 0, len(r.mu.all))
	inTurns(&r.mu, r.mu.all, func(w *watcher) {
		if !w.is(ending) {
			s := r.describeLocked(w)
			s.Queued = len(w.result)
			s.HeldBytes = w.bytesLocked(s.Queued, stats)
			all = append(all, s)
		}
	})
	return all, r.mu.cursor
}

// inTurns visits the members of all. Caller must hold lock, which inTurns releases every rowsAtOnce
// members, so that events don't wait. The set may change meanwhile: ranging over a Go map visits no
// member twice.
func inTurns[M any](lock sync.Locker, all map[uint64]M, visit func(M)) {
	turn := 0
	for _, m := range all {
		if turn == rowsAtOnce {
			lock.Unlock()
			runtime.Gosched() // let a goroutine waiting for the lock have it
			lock.Lock()
			turn = 0
		}
		turn++
		visit(m)
	}
}

// bytesLocked estimates the memory held by a watch: channel, queued objects and snapshot.
func (w *watcher) bytesLocked(queued int, stats watchcache.Stats) int64 {
	bytes := int64(cap(w.result)) * int64(reflect.TypeFor[watch.Event]().Size())
	if stats.Objects > 0 {
		bytes += int64(queued) * (stats.ObjectBytes / int64(stats.Objects))
	}
	if p := w.replayer; p != nil && p.initial.Load() {
		bytes += watchcache.Retained{}.With(p.mark, stats).Bytes()
	}
	return bytes
}

// Watches describes a page of the watches, and counts all. It holds the registry's lock no longer
// than an event.
func (f *Fanout) Watches(q status.Query) ([]status.Watcher, status.Counts) {
	stats := f.State.Stats()
	all, cursor := f.registry.describe(stats)
	age := func(lag uint64) float64 {
		if lag == 0 {
			return 0
		}
		return ageOf(f.State, cursor-watchcache.Position(lag), stats, f.Time.Now()).Seconds()
	}
	worst, in := uint64(0), map[status.State]int{}
	for i := range all {
		in[all[i].State]++
		worst = max(worst, all[i].Lag)
	}
	page := q.Page(all)
	for i := range page {
		page[i].LagSeconds = age(page[i].Lag)
	}
	return page, status.Counts{
		Live: in[status.Live], Starting: in[status.Starting], Parked: in[status.Parked],
		WorstLag: worst, WorstLagSeconds: age(worst),
	}
}

// ageOf returns the age of the event at a position, or of the oldest event if that was evicted.
func ageOf(state *watchcache.State, at watchcache.Position, stats watchcache.Stats, now time.Duration) time.Duration {
	var event [1]*watchcache.Event
	n, _, err := state.Since(max(at, stats.Oldest), event[:])
	if err != nil || n == 0 {
		return 0
	}
	return max(0, now-time.Duration(event[0].Received))
}
