// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
)

// The API statuses that requests are answered with, all of them but those that
// end a watch that has begun.

// badResourceVersionError (400) answers a resourceVersion that is none.
func badResourceVersionError(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// badKeyError (400) answers a key that can't be one of the resource: a request
// for the namespace "..", for example.
func badKeyError(err error) error { return apierrors.NewBadRequest(err.Error()) }

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
	return storage.NewTooLargeResourceVersionError(rv, current, fresh.RetrySeconds)
}

// restoredError (429) answers a read that finds out that storage has gone back
// to an earlier version.
func restoredError(why error) error {
	return apierrors.NewTooManyRequests(why.Error(), fresh.RetrySeconds)
}

// notFreshError (429) answers a read that the cache can't serve fresh, and that
// must not go to storage, to be tried again after some seconds.
func notFreshError(why error, retry int) error {
	return apierrors.NewTooManyRequests(why.Error(), retry)
}

// awayStatus (504) answers a read that only storage can answer, while storage is
// away.
func awayStatus(why error) error {
	return apierrors.NewTimeoutError(why.Error(), fresh.RetrySeconds)
}

// stoppedError (429) answers a request to a cache that is stopped.
func stoppedError(downtime time.Duration) error {
	return apierrors.NewTooManyRequests(tasks.ErrStopped.Error(), retryAfter(downtime))
}

// notReadyError (429) answers a request to a cache that has no state, for a
// reason that may not be known.
func notReadyError(why error, downtime time.Duration) error {
	text := "storage is (re)initializing"
	if why != nil {
		text = fmt.Sprintf("%s: %v", text, withoutContent(why))
	}
	return apierrors.NewTooManyRequests(text, retryAfter(downtime))
}

// pausedError (429) answers a watch that would be ended at once, because the
// cache can't follow storage.
func pausedError(why error, pause time.Duration) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf("the watch cache is paused: %v", withoutContent(why)), retryAfter(pause))
}

// retryAfter is the Retry-After, in seconds, of a refusal for a reason that has
// lasted for so long: from 1 s to 30 s, doubling about every 12 s (KEP-4568).
func retryAfter(downtime time.Duration) int {
	return int(math.Min(30, math.Exp2(downtime.Seconds()/12)))
}
