// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"time"
	"unique"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/metrics"
)

// endingsKept is how many endings of each of the two kinds are kept.
const endingsKept = 32

// Ending describes a watch that has ended. Lag is as in Status, at the end.
type Ending struct {
	ID             uint64
	Client         Client
	Name           match.Name
	Reason         metrics.EndReason
	Started, Ended time.Time
	Delivered, Lag uint64
}

// ending is an Ending as it is kept.
type ending struct {
	Ending // without the client
	client unique.Handle[Client]
}

// endings keeps the watches that have ended last. Watches ended by their clients or by
// their deadline are kept apart: they are many, and would drive out the others, which
// help to diagnose. The registry's lock guards it.
type endings struct{ usual, unusual latest }

func (e *endings) add(ended ending) {
	switch ended.Reason {
	case metrics.EndStopped, metrics.EndDeadline:
		e.usual.add(ended)
	default:
		e.unusual.add(ended)
	}
}

// latest is a ring that grows up to endingsKept.
type latest struct {
	ring []ending
	next int // the slot of the next ending, once the ring is full
}

func (l *latest) add(e ending) {
	if len(l.ring) < endingsKept {
		l.ring = append(l.ring, e)
		return
	}
	l.ring[l.next] = e
	l.next = (l.next + 1) % endingsKept
}

// endsLocked records the ending of w, which is about to end, and returns its report.
func (r *registry) endsLocked(w *watcher, reason metrics.EndReason, now time.Time) report {
	row := r.rowLocked(w)
	row.queued = len(w.result)
	r.mu.history.add(ending{client: w.client, Ending: Ending{
		ID: w.id, Name: w.group.Name, Reason: reason, Started: w.started, Ended: now, Delivered: row.delivered, Lag: row.lag,
	}})
	return report{row: row, reason: reason}
}

// Endings returns the watches that have ended last, the latest first: up to 32
// that their clients ended or that reached their deadline, and up to 32 others.
func (f *Fanout) Endings() []Ending {
	all := f.registry.endings()
	out := make([]Ending, len(all))
	for i, e := range all {
		out[i] = e.Ending
		out[i].Client = e.client.Value()
	}
	slices.SortStableFunc(out, func(a, b Ending) int { return b.Ended.Compare(a.Ended) })
	return out
}

func (r *registry) endings() []ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.mu.history.usual.ring, r.mu.history.unusual.ring)
}
