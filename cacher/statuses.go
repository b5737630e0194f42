// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/storage/capability"
)

// The API statuses that requests are answered with, all of them but those that
// end a watch that has begun.

// A request that is wrong gets the error that storage would return. Its handler adds a
// status, and registries look at the types.

// badResourceVersionError (400) answers a GET at a resourceVersion that is none.
func badResourceVersionError(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// notFoundError says that there was no object with the key at a resourceVersion.
func (e *engine) notFoundError(key string, at uint64) error {
	if s, ok := e.config.Storage.(capability.PathPrefixer); ok {
		key = s.PathPrefix() + key
	}
	return storage.NewKeyNotFoundError(key, int64(at))
}

// expiredError (410) answers a resourceVersion that is too old.
func expiredError(err error) error {
	return apierrors.NewResourceExpired("too old resource version: " + err.Error())
}

// foreignError (410) answers a resourceVersion above that of storage.
func foreignError(resource schema.GroupResource, rv, current uint64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf(
		"the resourceVersion %d is of another history: the storage of %s is at %d", rv, resource, current))
}

// tooLargeError (504, "too large resource version") answers a resourceVersion
// that the cache, at current, has not reached.
func tooLargeError(rv, current uint64) error {
	return storage.NewTooLargeResourceVersionError(rv, current, freshness.RetrySeconds)
}

// notFreshError (429) answers a read or a watch that the cache can't serve fresh, and
// that must not go to storage, to be tried again after some seconds. The reason is
// one of the cache's own errors.
func notFreshError(why error, retry int) error {
	return apierrors.NewTooManyRequests(why.Error(), retry)
}

// awayStatus (504) answers a read that only storage can answer, while storage is
// away.
func awayStatus(why error) error {
	return apierrors.NewTimeoutError(why.Error(), freshness.RetrySeconds) // errAway
}

// overStatus (504) answers a watch whose time is over before it begins. An API server
// makes a negative time of a timeoutSeconds that is negative or doesn't fit, and sends
// no event of a watch that has no time.
func overStatus() error {
	return apierrors.NewTimeoutError("the time of the watch is over before it begins: timeoutSeconds is negative, too large, or shorter than the request has waited", freshness.RetrySeconds)
}

// stoppedError (429) answers a request to a cache that is stopped.
func stoppedError(downtime time.Duration) error {
	return apierrors.NewTooManyRequests(tasks.ErrStopped.Error(), retryAfter(downtime))
}

// notReadyError (429) answers a request to a cache that has no state. unlistable:
// because storage has something that it can't deliver.
func notReadyError(unlistable bool, downtime time.Duration) error {
	text := "storage is (re)initializing"
	if unlistable {
		text += ": storage has an object that it cannot deliver"
	}
	return apierrors.NewTooManyRequests(text, retryAfter(downtime))
}

// pausedError (429) answers a watch that would be ended at once, because the
// cache can't follow storage.
func pausedError(pause time.Duration) error {
	return apierrors.NewTooManyRequests("the watch cache is paused: storage cannot deliver the next change", retryAfter(pause))
}

// undeliverableStatus (500) ends the watches of a cache that is paused. An object that
// was deleted though storage could not read it has the reason and the words of
// storage's own watch.
func undeliverableStatus(why error) error {
	if apierrors.ReasonForError(why) == metav1.StatusReasonStoreReadError {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
			Message: "saw a DELETED event, but object data is corrupt; new watches are refused until storage was listed",
		}}
	}
	return apierrors.NewInternalError(errors.New("storage cannot deliver the next change; new watches are refused until it can"))
}

// retryAfter is the Retry-After, in seconds, of a refusal for a reason that has
// lasted for so long: from 1 s to 30 s, doubling about every 12 s (KEP-4568).
func retryAfter(downtime time.Duration) int {
	return int(math.Min(30, math.Exp2(downtime.Seconds()/12)))
}
