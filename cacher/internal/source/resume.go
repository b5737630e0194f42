// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

const (
	// maxResumeLag is the largest lag, in resourceVersions, at which a broken watch is resumed. For
	// that, etcd repeatedly reads all later writes of every resource until the watch is level
	// (regression 79); a list reads one resource once.
	maxResumeLag = 100_000
	// A watch that broke less than resumeWithoutAskingFor ago is resumed without a version request.
	resumeWithoutAskingFor = 10 * time.Second
)

// tooFarBehind returns an error if storage is so far ahead of the stream that a list costs less
// than resuming, and nil if its version is unknown.
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
	// undeliverableAfter is the number of consecutive errors at one place after which an event
	// counts as undeliverable.
	undeliverableAfter = 2
	// repeatsWithin is the time within which a watch reaches the event that broke the previous one.
	repeatsWithin = 2 * time.Second
)

// undeliverable reports whether the errors of the storage watches, of which err is the last, mean
// that storage can't deliver an event, rather than being down. We ignore error texts, because an
// unavailable encryption plugin and an unavailable etcd member fail alike. An event can't be
// delivered if
//   - w was opened after storage had answered a version request,
//   - w broke soon, and got no further than earlier watches,
//   - storage then answers another version request, and
//   - another watch, from the storage's current version, does not break. (An etcd member
//     without a leader answers version requests and breaks every watch.)
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
