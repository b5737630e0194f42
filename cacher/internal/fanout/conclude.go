// SPDX-License-Identifier: Apache-2.0

package fanout

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/metrics"
)

// conclude ends a watcher that does not go live and closes its channel. Nothing
// is kept for the watcher any more but the events in the channel. An error that
// the client is to be told waits until the client reads, or is gone: a client
// must not take the end of its channel for the end of the initial events. If many
// wait, the poller calls conclude again.
func (r *replayer) conclude() {
	r.supervisor.remove(r)
	select { // one of them is closed, or about to be
	case <-r.quit:
	case <-r.verdict:
		if r.failure = r.lastWords(); r.failure != nil {
			status := r.failure.Status()
			if !r.stays() && r.poller.poll(r, true) {
				return
			}
			select {
			case r.watcher.result <- watch.Event{Type: watch.Error, Object: &status}:
			case <-r.quit:
			}
		}
		r.registry.end(r.watcher, r.reason)
	}
	close(r.watcher.result)
	r.giveBack()
}

// lastWords returns the error for the client of an expelled watcher, nil if the
// client can go on from where it is.
func (r *replayer) lastWords() *apierrors.StatusError {
	switch {
	case r.failure != nil:
		return r.failure
	case r.reason == metrics.EndExpired:
		r.metrics.Expired()
		return apierrors.NewResourceExpired("the watch fell behind the events that are kept")
	case r.initial.Load():
		return apierrors.NewResourceExpired("the initial events of the watch were not read in time: list and watch again")
	}
	return nil
}

// expel ends the watcher, even in the middle of a blocked send, unless it has
// gone live or has ended otherwise. Its snapshot and events are let go at once;
// see conclude.
func (r *replayer) expel(reason metrics.EndReason) {
	expelled, polled := r.registry.expel(r.watcher, r.quit, reason)
	if !expelled {
		return
	}
	r.reason = reason
	close(r.verdict)
	if !polled {
		return
	}
	r.supervisor.remove(r)
	if reason != metrics.EndExpired {
		r.registry.end(r.watcher, reason) // there is nothing to tell, which would wait for room
	}
}

// fail expels the watcher with an error that its client can tell. fail returns
// false, for the watcher has ended.
func (r *replayer) fail(err *apierrors.StatusError) bool {
	r.failure = err
	r.expel(metrics.EndExpired)
	return false
}
