// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"errors"
	"fmt"
)

// What a reader can be refused for. The errors that State returns wrap these.
var (
	// ErrExpired: the window no longer reaches back to what was asked for.
	ErrExpired = errors.New("expired")
	// ErrCompacted: the source has compacted the resourceVersion asked for.
	ErrCompacted = errors.New("compacted")
	// ErrFuture: the state has not reached the resourceVersion asked for.
	ErrFuture = errors.New("in the future")
)

// What a change can be refused for. Each means that the source and the state
// have parted; the writer resynchronizes with Replace.
var (
	// ErrGap: the change does not fit the state it is applied to, so changes
	// before it were missed.
	ErrGap = errors.New("changes were missed")
	// ErrBackwards: the resourceVersion is one that the source had already
	// declared complete, or is below one already seen.
	ErrBackwards = errors.New("resourceVersion goes backwards")
)

// errAbandoned is what those get who waited for a shared value whose maker
// panicked. Who comes after them makes it anew.
var errAbandoned = errors.New("its making was abandoned")

func expired(rv, oldest uint64) error {
	if rv >= oldest {
		return fmt.Errorf("resourceVersion %d is in a stretch of history that was not seen: %w", rv, ErrExpired)
	}
	return fmt.Errorf("resourceVersion %d is older than the oldest kept, %d: %w", rv, oldest, ErrExpired)
}

func future(rv, current uint64) error {
	return fmt.Errorf("resourceVersion %d, the cache is at %d: %w", rv, current, ErrFuture)
}

func gap(c Change, why string) error {
	return fmt.Errorf("%s of %q at resourceVersion %d: %s: %w", c.Type, c.Element.Key, c.RV, why, ErrGap)
}
