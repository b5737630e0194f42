// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	// errWatchEnded reports a storage watch that ended without an error event.
	errWatchEnded = errors.New("the storage's watch ended")
	// errWatchHung reports a storage watch ended by GiveUp.
	errWatchHung = errors.New("the storage's watch hangs: storage is ahead of it, and it sends nothing")
	// errMalformedEvent reports an event that the Reflector would skip, and log with its object.
	errMalformedEvent = errors.New("the storage's watch sent an event of an unknown type, or without metadata")
	// errRelistOrdered reports that Relist ended the stream.
	errRelistOrdered = errors.New("the watch cache lists again")
)

// failureOf returns why a storage watch failed, given the last receive from its channel, or nil.
func failureOf(event watch.Event, open bool) error {
	switch {
	case !open:
		return errWatchEnded
	case event.Type == watch.Error:
		return apierrors.FromObject(event.Object)
	}
	return nil
}

// Failure returns the watch event with the API status of err, an internal error by default.
func Failure(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	return watch.Event{Type: watch.Error, Object: &object}
}

// Expired reports whether err says that storage no longer has the events of a watch.
func Expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// redactedError hides the text of a storage error, which may quote an object, from the Reflector,
// which logs errors.
type redactedError struct{ error }

func (redactedError) Error() string {
	return "the storage failed; see the log of the watch cache for the error"
}

func (e redactedError) Unwrap() error { return e.error }

// Unredact returns the storage error behind a Reflector's error.
func Unredact(err error) error {
	var redacted redactedError
	if errors.As(err, &redacted) {
		return redacted.error
	}
	return err
}
