// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// resumeMost is by how many resourceVersions a watch may lie behind the
	// storage to be resumed. For a watch that is resumed etcd reads all that was
	// written since, of every resource, again and again until the watch is level:
	// one that was half a million behind took nine tenths of its writes'
	// throughput. A list reads the one resource once. At the rates that one
	// etcd takes, 100,000 writes are tens of seconds to several minutes, after
	// which few windows reach back anyway.
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
	storage, ok := s.source.version(s.ctx)
	if !ok || storage <= at || storage-at <= resumeMost {
		return nil
	}
	return fmt.Errorf("the storage is at resourceVersion %d, %d ahead of the watch that broke at %d", storage, storage-at, at)
}

// furthest is how far the watches of a stream have come: to a resourceVersion, and
// to how many events of it. A revision may have several, and a watch that resumes
// may bring some of them again.
type furthest struct {
	version uint64
	events  int
	// at and atEvents are the same for the open watch. came: it has come further than
	// earlier watches. advanced: one of them has come further than the stream's
	// beginning.
	at             uint64
	atEvents       int
	came, advanced bool
}

// watchFrom is called when another watch begins.
func (r *furthest) watchFrom() { r.at, r.atEvents, r.came = 0, 0, false }

// begin is called with the resourceVersion that the stream begins after.
func (r *furthest) begin(version uint64) { r.version, r.events = version, 0 }

// note is called for each event, and for each bookmark.
func (r *furthest) note(version uint64, bookmark bool) {
	if version != r.at {
		r.at, r.atEvents = version, 0
	}
	if !bookmark {
		r.atEvents++
	}
	if r.at > r.version || (r.at == r.version && r.atEvents > r.events) {
		r.version, r.events = r.at, r.atEvents
		r.came, r.advanced = true, true
	}
}

const (
	// undeliverableAfter is how many judged errors in a row, at the same place,
	// say that the storage has an event that it can't deliver.
	undeliverableAfter = 2
	// judgedWithin is how soon after it was opened a watch comes to the event
	// that broke the one before it.
	judgedWithin = 2 * time.Second
)

// judge decides whether the errors of the storage's watches mean that the storage
// has an event that it can't deliver, and not that the storage is away. Only what
// the storage does counts, not the text of its errors: a plugin for encryption that
// is away fails like a member of etcd that is. An event can't be delivered if
//   - the watch was opened after the storage had answered a version request,
//   - it broke soon, and came no further than earlier watches,
//   - the storage answers another version request after that, and
//   - another watch, from the storage's version of now, does not break: a member
//     without a leader answers version requests and breaks every watch.
type judge struct {
	// answered: the storage answered a version request before the watch was
	// opened.
	answered bool
	errors   int
}

// undeliverable judges the failure of the stream's watch.
func (j *judge) undeliverable(s *stream, from *Watch, failure watch.Event) bool {
	if failure == ended || failure == hung {
		j.answered = false
		return false
	}
	before := j.answered
	soon := s.source.config.Clock.Since(from.opened) < judgedWithin
	var at uint64
	at, j.answered = s.source.version(s.ctx)
	switch {
	case !j.answered, !soon, s.furthest.came:
		j.errors = 0
	case before:
		j.errors++
	}
	return j.errors >= undeliverableAfter && s.source.canWatch(s.ctx, at)
}

// canWatch reports whether a watch of the storage that begins at its version of now
// brings something, or does not break soon.
func (s *Source) canWatch(ctx context.Context, at uint64) bool {
	w, err := s.openBeside(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(at, 10)})
	if err != nil {
		return false
	}
	defer s.discard(w)
	// A failure is no reason to give up: the watch may live without a report.
	_ = s.config.Storage.RequestWatchProgress(w.onStream(ctx))
	select {
	case event, open := <-w.ResultChan():
		return open && event.Type != watch.Error
	case <-s.config.Clock.After(judgedWithin):
		return true
	case <-ctx.Done():
		return false
	}
}
