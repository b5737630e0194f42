// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/metrics"
)

// conclude ends a watcher that does not go live and closes its channel. Only the events
// in the channel stay in memory. If the client must receive an error, conclude waits
// until the client reads, or is gone: a client must not take the end of its channel for
// the end of the initial events.
func (r *replayer) conclude() {
	r.supervisor.remove(r)
	select { // one of them is closed, or about to be
	case <-r.quit:
	case <-r.verdict:
		if r.failure = r.lastWords(); r.failure != nil {
			status := r.failure.Status()
			select {
			case r.watcher.result <- watch.Event{Type: watch.Error, Object: &status}:
			case <-r.quit:
			}
		}
		r.registry.end(r.watcher, r.reason)
	}
	close(r.watcher.result)
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
// gone live or has ended otherwise. It releases its snapshot and events at once; see
// conclude.
func (r *replayer) expel(reason metrics.EndReason) {
	if r.registry.expel(r.watcher, r.quit, reason) {
		r.reason = reason
		close(r.verdict)
	}
}

// fail expels the watcher with an error for its client. It returns false: the watcher has
// ended.
func (r *replayer) fail(err *apierrors.StatusError) bool {
	r.failure = err
	r.expel(metrics.EndExpired)
	return false
}
