// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"errors"
	"fmt"
)

// The reasons for which a read is refused. The errors that State returns wrap
// these.
var (
	// ErrExpired: the window no longer has the events from the position or
	// resourceVersion asked for.
	ErrExpired = errors.New("expired")
	// ErrCompacted: the source has compacted the resourceVersion asked for.
	ErrCompacted = errors.New("compacted")
	// ErrFuture: the resourceVersion or position asked for is above the state's.
	ErrFuture = errors.New("in the future")
	// ErrStopped: the done channel of the reader was closed before the read was
	// complete.
	ErrStopped = errors.New("no longer wanted")
)

// The reasons for which a change is refused. Each means that the source and the
// state differ; the writer must list the source again and call Replace.
var (
	// ErrGap: the change does not fit the state, so earlier changes were missed.
	ErrGap = errors.New("changes were missed")
	// ErrBackwards: the resourceVersion is one that the source had already
	// declared complete, or is below one already seen.
	ErrBackwards = errors.New("resourceVersion goes backwards")
)

// errAbandoned is the error of readers that waited for a shared value whose
// maker panicked. The next reader makes the value again.
var errAbandoned = errors.New("the call that was making the shared value has panicked")

func expired(rv, oldest uint64) error {
	if rv >= oldest {
		return fmt.Errorf("resourceVersion %d is in a stretch of history that was not seen: %w", rv, ErrExpired)
	}
	return fmt.Errorf("resourceVersion %d is older than the oldest kept, %d: %w", rv, oldest, ErrExpired)
}

func future(rv, current uint64) error {
	return fmt.Errorf("resourceVersion %d is above the cache's, %d: %w", rv, current, ErrFuture)
}

func gap(c Change, why string) error {
	return fmt.Errorf("%s of %q at resourceVersion %d: %s: %w", c.Type, c.Element.Key, c.RV, why, ErrGap)
}
