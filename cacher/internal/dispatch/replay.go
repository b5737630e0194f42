// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// replayBatch is how many events a watcher that catches up reads at a time.
const replayBatch = 32

// standing is how a replayer stands with its watcher.
type standing uint8

const (
	behind standing = iota // it is to go on
	level                  // the dispatcher feeds the watcher
	over                   // the watcher has ended
)

// replay sends the window's events from the watcher's position on, and returns when the
// watcher has caught up or must end.
func (r *replayer) replay() standing {
	var events [replayBatch]*watchcache.Event
	far := r.farBehind()
	for {
		position := r.position()
		n, to, found := 0, position, false
		if far {
			n, to, found = r.lookback.read(r.rarest, position, &events)
			far = found && n == len(events)
		}
		if !found {
			var err error
			n, _, err = r.state.Since(position, events[:])
			if err != nil {
				if err = r.resume(position); err != nil {
					r.metrics.Expired()
					r.fail(apierrors.NewResourceExpired("the watch fell behind the events that are kept: " + err.Error()))
					return over
				}
				continue
			}
			to = position + watchcache.Position(n)
		}
		r.next.Store(uint64(to))
		if now := r.events(events[:n]); now != behind {
			return now
		}
		r.at.Store(r.next.Load())
		clear(events[:n])
		if to == position && r.registry.goLive(r.watcher, position) {
			return level
		}
		if n == 0 && r.ended() {
			return over
		}
	}
}

// events sends some events of the window.
func (r *replayer) events(events []*watchcache.Event) (now standing) {
	n := 0
	for ; n < len(events) && now == behind; n++ {
		r.at.Store(uint64(events[n].Position))
		now = r.event(events[n])
	}
	if r.begins {
		r.metrics.Processed(n)
	}
	return now
}

// resume goes on at the oldest event that there is, because the one at the position
// has left the window, if none that is for the watcher has left with it.
func (r *replayer) resume(from watchcache.Position) error {
	at, beyond, err := r.state.Resume(from, r.indexes.Interest(&r.watcher.group.Query))
	if err != nil {
		return err
	}
	r.next.Store(uint64(at))
	r.at.Store(uint64(at))
	if beyond {
		r.metrics.BeyondWindow()
	}
	return nil
}

// isWhole reports whether the window has all that the watcher is still to look at.
func (r *replayer) isWhole() bool {
	_, _, err := r.state.Resume(r.position(), r.indexes.Interest(&r.watcher.group.Query))
	return err == nil
}

// farBehind reports whether the replayer should begin by looking up the events that may
// affect its watcher, and sets the equality to look up.
func (r *replayer) farBehind() (far bool) {
	if r.state.Stats().Next < r.position()+farBehind {
		return false
	}
	r.rarest, far = r.indexes.Rarest(&r.watcher.group.Query)
	return far
}

// event sends one event, if it affects the watcher.
func (r *replayer) event(e *watchcache.Event) standing {
	if e.RV <= r.watcher.after {
		return behind
	}
	o := r.watcher.group.Outcome(e, false)
	switch {
	case o == match.Unaffected && r.ended():
		return over
	case o == match.Unaffected:
		return behind
	case !r.send(r.convert.replayed(e, o)):
		return over
	}
	r.watcher.delivered.event(e)
	r.metrics.Delivered(1)
	return behind
}
