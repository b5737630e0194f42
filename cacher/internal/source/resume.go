// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

const (
	// maxResumeLag is the largest lag, in resourceVersions, at which a broken watch is
	// resumed. To resume one, etcd reads all later writes of every resource repeatedly
	// until the watch is level (regression 79); a list reads one resource once.
	maxResumeLag = 100_000
	// resumeWithoutAskingFor is the time since a watch broke for which it is resumed
	// without requesting the storage's version.
	resumeWithoutAskingFor = 10 * time.Second
)

// tooFarBehind returns an error if the storage is so far ahead of the stream that a list
// costs less than resuming, and nil if its version is unknown.
func (s *stream) tooFarBehind() error {
	resumeAt, err := strconv.ParseUint(s.resumeAt(), 10, 64)
	if err != nil || s.source.config.Clock.Since(s.brokenSince) < resumeWithoutAskingFor {
		return nil
	}
	current, ok := s.source.Version(s.ctx)
	if !ok || current <= resumeAt || current-resumeAt <= maxResumeLag {
		return nil
	}
	return fmt.Errorf("storage is at resourceVersion %d, %d ahead of the watch that broke at %d", current, current-resumeAt, resumeAt)
}

const (
	// undeliverableAfter is the number of consecutive errors at one place after which
	// storage counts as having an event that it can't deliver.
	undeliverableAfter = 2
	// repeatsWithin is the time within which a watch reaches the event that broke the
	// watch before it.
	repeatsWithin = 2 * time.Second
)

// undeliverable decides whether the errors of the storage's watches, of which err is the
// last, mean that storage has an event that it can't deliver, rather than being down. It
// looks at the behaviour of storage and not at the text of errors: an unavailable
// encryption plugin and an unavailable etcd member fail alike. An event can't be
// delivered if
//   - w was opened after storage had answered a version request,
//   - w broke soon, and got no further than earlier watches,
//   - storage then answers another version request, and
//   - another watch, from the storage's current version, does not break: an etcd member
//     without a leader answers version requests and breaks every watch.
func (s *stream) undeliverable(w *Watch, err error) bool {
	if errors.Is(err, errWatchEnded) || errors.Is(err, errWatchHung) {
		s.hasAnswered = false
		return false
	}
	before := s.hasAnswered
	soon := s.source.config.Clock.Since(w.opened) < repeatsWithin
	var current uint64
	current, s.hasAnswered = s.source.Version(s.ctx)
	switch {
	case !s.hasAnswered, !soon, s.watchProgressed:
		s.repeatedErrors = 0
	case before:
		s.repeatedErrors++
	}
	if s.repeatedErrors < undeliverableAfter {
		return false
	}
	_, breaks := s.source.probe(s.ctx, current, repeatsWithin)
	return !breaks
}
