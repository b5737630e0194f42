// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// watcher is one watch: a position in the sequence of events, and a channel. Either the
// dispatcher feeds it (live) or its replayer (catching up). Only the goroutine that feeds
// it sends on its channel and closes it; the registry's lock guards the changes from one
// to the other.
type watcher struct {
	registry *registry
	// id counts the watches of a Fanout from 1 on.
	id     uint64
	result chan watch.Event
	// group is all watchers with the same query.
	group *match.Group[*watcher]
	// after and shown are those of its Start.
	after, shown uint64
	// bookmarks: the client asked for them. deadline is when the request ends,
	// on the timeline, 0 if never; started is when the watch began, by the clock, for
	// people.
	bookmarks bool
	deadline  time.Duration
	started   time.Time
	// client is whose watch it is. Many watches share one value.
	client unique.Handle[status.Client]
	// encoder encodes the initial events; nil if they are private copies.
	encoder WatchEncoder

	// Guarded by registry.mu.

	// replayer brings the watcher up to date. It is nil while the watcher is live: the
	// dispatcher feeds it then, at slot of the group's members.
	replayer *replayer
	slot     int
	// ended: nothing more is sent; the channel is closed or about to be.
	ended bool
	// expelled: it has ended, but its replayer has not sent the error yet.
	expelled bool
	// position is the one of the first event that the watcher had not looked at
	// when it was last parked or went live.
	position watchcache.Position
	// sent is how many events were put into the channel, without those of the
	// replayer that is at work and without bookmarks.
	sent uint64
	// bookmark is the watcher's entry in the time buckets, if it asked for
	// bookmarks.
	bookmark *bookmarkEntry
	// stopAfterFunc undoes the AfterFunc on the request's context.
	stopAfterFunc func() bool

	// delivered belongs to whichever goroutine feeds the watcher.
	delivered deliveries
}

var _ watch.Interface = (*watcher)(nil)

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. A server has a timer of its own for the end of a
// request, and stops the watch when that fires, before or after its context ends: both are
// the deadline.
func (w *watcher) Stop() {
	reason := metrics.EndStopped
	if w.deadline > 0 && w.registry.Time.Now() >= w.deadline {
		reason = metrics.EndDeadline
	}
	w.registry.end(w, reason)
}

// live reports whether the dispatcher feeds the watcher. The registry's lock is held.
func (w *watcher) live() bool { return w.replayer == nil }

// isPast reports whether the watcher has received an event above rv, of a revision that
// is not complete yet: a bookmark at rv would go back.
func (w *watcher) isPast(rv uint64) bool { return w.delivered.rv > rv }
