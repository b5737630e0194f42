// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// watcher is one watch. It is a position in the sequence of events, and a
// channel.
//
// Either the dispatcher feeds it (live) or a goroutine of its own, which
// replays from the window until it is level with the dispatcher (catching
// up). Whoever feeds it is the only one to send on its channel and to close
// it; the registry's lock guards the change from one to the other.
type watcher struct {
	registry *registry
	result   chan watch.Event
	// selection is shared with all watchers that ask for the same.
	group *group
	// after is the resourceVersion that the watcher has seen when it begins:
	// no event at or below it is for this watcher.
	after uint64
	// bookmarks is whether it asked for them; deadline when its request ends,
	// zero if never.
	bookmarks bool
	deadline  time.Time
	started   time.Time

	// Guarded by registry.mu.

	// live: the dispatcher feeds it, at slot of the group's members.
	live bool
	slot int
	// ended: nothing more is sent; the channel is closed or about to be.
	ended bool
	// quit ends the goroutine that catches up; nil while live.
	quit chan struct{}
	// position is that of the first event that the watcher has not looked at
	// when it was last parked or went live.
	position watchcache.Position
	// bookmark is the watcher's entry in the time buckets, if it asked for
	// bookmarks.
	bookmark *bookmarkEntry
	// release ends the watch over the request's context.
	release func() bool

	// delivered belongs to who feeds the watcher.
	delivered deliveries
}

var _ watch.Interface = (*watcher)(nil)

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface: the client wants no more.
func (w *watcher) Stop() { w.registry.end(w, endStopped) }

// Why a watcher has ended, as metrics say it.
const (
	endStopped  = "stopped"
	endDeadline = "deadline"
	endExpired  = "expired"
	endRelist   = "relist"
	endFailed   = "failed"
	endParked   = "parked"
	endShutdown = "shutdown"
)
