// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/metrics"
)

const endingsKept = 32

// endings holds the last watches to end. The many ended by client or deadline are separate, because
// they would displace the others, which help to diagnose. Guarded by registry.mu.
type endings struct{ usual, unusual []status.Ended }

func (e *endings) add(ended status.Ended, reason metrics.EndReason) {
	of := &e.unusual
	if reason == metrics.EndStopped || reason == metrics.EndDeadline {
		of = &e.usual
	}
	if len(*of) == endingsKept {
		*of = slices.Delete(*of, 0, 1)
	}
	*of = append(*of, ended)
}

// describedText is the maximum length in bytes of a client's text.
const describedText = 1 << 10

func short(text string) string {
	if len(text) <= describedText {
		return text
	}
	return strings.ToValidUTF8(text[:describedText], "") + "..."
}

// recordEndLocked records and counts the end of w, before the transition.
func (r *registry) recordEndLocked(w *watcher, reason metrics.EndReason, now time.Time) {
	s := r.describeLocked(w)
	client := status.Client{User: short(s.Client.User), UserAgent: short(s.Client.UserAgent), Address: short(s.Client.Address)}
	r.mu.history.add(status.Ended{
		ID: s.ID, Client: client, Key: short(s.Key), LabelSelector: s.LabelSelector, FieldSelector: s.FieldSelector,
		Reason: reason.String(), Started: s.Started, Ended: now, Delivered: s.Delivered, Lag: s.Lag,
	}, reason)
	r.Metrics.Ended(reason)
}

// Endings returns the last watches to end, latest first: up to 32 ended by client or deadline, and
// up to 32 others.
func (f *Fanout) Endings() []status.Ended {
	f.registry.mu.Lock()
	all := slices.Concat(f.registry.mu.history.usual, f.registry.mu.history.unusual)
	f.registry.mu.Unlock()
	slices.SortStableFunc(all, func(a, b status.Ended) int { return b.Ended.Compare(a.Ended) })
	return all
}

// conclude closes a watcher that does not go live. If there is an error for the client, conclude
// waits until the client reads it or stops; otherwise the client would mistake a closed channel for
// the end of the initial events.
func (r *replayer) conclude() {
	r.worked()
	<-r.stop // closed, or about to be
	if r.watcher.is(ending) {
		if failure := r.finalError(); failure != nil { // a copy, since encoders write into it
			select {
			case r.watcher.result <- watch.Event{Type: watch.Error, Object: failure.DeepCopy()}:
			case <-r.gone:
			}
		}
		r.registry.end(r.watcher, r.reason)
	}
	close(r.watcher.result)
}

// finalError returns the error for an ending watcher's client, nil if the client can resume.
func (r *replayer) finalError() *metav1.Status {
	switch {
	case r.failure != nil:
		return r.failure
	case r.reason == metrics.EndExpired:
		r.Metrics.Expired()
		return &apierrors.NewResourceExpired("the watch fell behind the events that are kept").ErrStatus
	case r.initial.Load():
		return &apierrors.NewResourceExpired("the initial events of the watch were not read in time: list and watch again").ErrStatus
	}
	return nil
}

// fail expels the watcher with an error for its client. It always returns false.
func (r *replayer) fail(err *apierrors.StatusError) bool {
	r.registry.expel(r, metrics.EndExpired, &err.ErrStatus)
	return false
}
