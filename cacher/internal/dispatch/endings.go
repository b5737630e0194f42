// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"time"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

// endingsKept is how many endings of each of the two kinds are kept.
const endingsKept = 32

// ending is a watch that has ended, as it is kept: without the client.
type ending struct {
	status.Ended
	reason metrics.EndReason
	client unique.Handle[status.Client]
}

// endings keeps the watches that have ended last. Watches ended by their clients or by
// their deadline are kept apart: they are many, and would drive out the others, which
// help to diagnose. The registry's lock guards it.
type endings struct{ usual, unusual []ending }

func (e *endings) add(ended ending) {
	of := &e.unusual
	if ended.reason == metrics.EndStopped || ended.reason == metrics.EndDeadline {
		of = &e.usual
	}
	if len(*of) == endingsKept {
		*of = slices.Delete(*of, 0, 1)
	}
	*of = append(*of, ended)
}

// endsLocked records the ending of w, which is about to end.
func (r *registry) endsLocked(w *watcher, reason metrics.EndReason, now time.Time) {
	row := r.rowLocked(w)
	r.mu.history.add(ending{client: w.client, reason: reason, Ended: status.Ended{
		ID: w.id, Key: w.group.Name.Key, LabelSelector: w.group.Name.Label, FieldSelector: w.group.Name.Field,
		Reason: reason.String(), Started: w.started, Ended: now, Delivered: row.delivered, Lag: row.lag,
	}})
}

// Endings returns the watches that have ended last, the latest first: up to 32
// that their clients ended or that reached their deadline, and up to 32 others.
func (f *Fanout) Endings() []status.Ended {
	all := f.registry.endings()
	out := make([]status.Ended, len(all))
	for i, e := range all {
		out[i] = e.Ended
		out[i].Client = e.client.Value()
	}
	slices.SortStableFunc(out, func(a, b status.Ended) int { return b.Ended.Compare(a.Ended) })
	return out
}

func (r *registry) endings() []ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.mu.history.usual, r.mu.history.unusual)
}

// conclude ends a watcher that does not go live and closes its channel. If the client must
// receive an error, conclude waits until the client reads, or is gone: a client must not
// take the end of its channel for the end of the initial events.
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
