// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

const (
	// resumeMost is by how many resourceVersions a watch may lie behind the storage to be
	// resumed. etcd reads all that was written since, of every resource, again and again
	// until the watch is level (regression 79); a list reads the one resource once.
	resumeMost = 100_000
	// resumeUnasked is for how long nothing may have come for the watch to be
	// resumed without asking how far the storage is.
	resumeUnasked = 10 * time.Second
)

// tooFarBehind returns an error if the storage is so far ahead of the stream that
// listing it again costs less than resuming, and nil if its version is unknown.
func (s *stream) tooFarBehind() error {
	at, err := strconv.ParseUint(s.resumeAt(), 10, 64)
	if err != nil || s.source.config.Clock.Since(s.broken) < resumeUnasked {
		return nil
	}
	storage, ok := s.source.Version(s.ctx)
	if !ok || storage <= at || storage-at <= resumeMost {
		return nil
	}
	return fmt.Errorf("the storage is at resourceVersion %d, %d ahead of the watch that broke at %d", storage, storage-at, at)
}

const (
	// undeliverableAfter is how many judged errors in a row, at the same place,
	// say that the storage has an event that it can't deliver.
	undeliverableAfter = 2
	// judgedWithin is how soon after it was opened a watch comes to the event
	// that broke the one before it.
	judgedWithin = 2 * time.Second
)

// undeliverable decides whether the errors of the storage's watches, failure being the last,
// mean that the storage has an event that it can't deliver, and not that the storage is
// away. The storage's behaviour counts, and not the text of its errors: a plugin for
// encryption that is away fails like a member of etcd that is. An event can't be delivered if
//   - the watch was opened after the storage had answered a version request,
//   - it broke soon, and came no further than earlier watches,
//   - the storage answers another version request after that, and
//   - another watch, from the storage's version of now, does not break: a member
//     without a leader answers version requests and breaks every watch.
func (s *stream) undeliverable(from *Watch, failure watch.Event) bool {
	if failure == ended || failure == hung {
		s.hasAnswered = false
		return false
	}
	before := s.hasAnswered
	soon := s.source.config.Clock.Since(from.opened) < judgedWithin
	var at uint64
	at, s.hasAnswered = s.source.Version(s.ctx)
	switch {
	case !s.hasAnswered, !soon, s.came:
		s.judged = 0
	case before:
		s.judged++
	}
	if s.judged < undeliverableAfter {
		return false
	}
	_, breaks := s.source.probe(s.ctx, at, judgedWithin)
	return !breaks
}
