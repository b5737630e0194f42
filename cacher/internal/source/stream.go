// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// reopenMin and reopenMax bound the doubling pause before a broken storage watch is reopened.
	// reopenAnswering replaces it once storage answers a version request.
	reopenMin       = 50 * time.Millisecond
	reopenMax       = 5 * time.Second
	reopenAnswering = 200 * time.Millisecond
	// maxAbandoned bounds the open storage watches abandoned because they hung.
	maxAbandoned = 8
)

// stream is one watch of the Reflector over successive storage watches.
type stream struct {
	source *Source
	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	// rv is the version up to which the stream has forwarded every event.
	rv string
	// partialRV is the version of the last event above rv, or 0. More events of it may follow.
	partialRV uint64
	// listedRV is the version of the preceding list if the first watch was opened before it,
	// otherwise 0. The stream drops events up to it.
	listedRV uint64
	// maxRV is the highest version reached by the storage watches. watchProgressed reports whether
	// the open one raised it.
	maxRV           uint64
	watchProgressed bool
	// hasAnswered reports whether storage answered a version request before the open watch.
	hasAnswered bool
	// repeatedErrors counts consecutive errors at one place. See undeliverable.
	repeatedErrors int
	// pause is the last pause before a watch was opened, or 0 since an event.
	pause time.Duration
	// brokenSince is when the storage watch broke, or zero since an event.
	brokenSince time.Time
	// abandoned has an element per abandoned open watch.
	abandoned chan struct{}
}

func newStream(ctx context.Context, source *Source, rv string) *stream {
	ctx, cancel := context.WithCancel(ctx)
	listed, _ := strconv.ParseUint(rv, 10, 64)
	return &stream{
		source: source, ctx: ctx, cancel: cancel,
		result:    make(chan watch.Event, 1),
		rv:        rv,
		maxRV:     listed,
		abandoned: make(chan struct{}, maxAbandoned),
	}
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.cancel() }

func (s *stream) run(w *Watch) {
	defer close(s.result)
	defer s.cancel()
	for w != nil {
		err := s.forward(w)
		hung := errors.Is(err, errWatchHung)
		s.leave(w, hung)
		if s.ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRelistOrdered) {
			s.sendRelist()
			return
		}
		s.failed(err)
		if Expired(err) {
			s.source.config.Owner.WatchLost(metrics.RelistExpired)
			s.sendRelist()
			return
		}
		if s.undeliverable(w, err) {
			s.source.config.Owner.Undeliverable(err)
			s.sendRelist()
			return
		}
		w = s.reopen(hung)
	}
}

// leave ends a storage watch and awaits it, unless it hangs and few such watches are open.
func (s *stream) leave(w *Watch, hung bool) {
	w.end()
	s.source.current.CompareAndSwap(w, nil)
	if hung {
		select {
		case s.abandoned <- struct{}{}:
			// Awaited by Config.Tasks; ends with the storage watch.
			if s.source.config.Tasks.Run(func() { w.drain(); <-s.abandoned }) {
				return
			}
		case <-s.ctx.Done():
		}
	}
	w.drain()
}

// forward sends a storage watch's events to the Reflector, and returns why it stopped.
func (s *stream) forward(w *Watch) error {
	s.watchProgressed = false
	for {
		select {
		case event, open := <-w.ResultChan():
			if err := failureOf(event, open); err != nil {
				return err
			}
			if err := s.forwardEvent(w, event); err != nil {
				return err
			}
		case <-w.hung:
			return errWatchHung
		case <-s.source.relistOrder:
			return s.relistOrdered()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

func (s *stream) forwardEvent(w *Watch, event watch.Event) error {
	rv, version, ok := versionOf(event)
	if !ok {
		return errMalformedEvent
	}
	if version != 0 && version <= s.listedRV {
		w.received.Add(1)
		return nil
	}
	w.busy.Store(true)
	sent := s.send(event)
	w.busy.Store(false)
	if !sent {
		return s.ctx.Err()
	}
	if event.Type != watch.Bookmark || rv != s.rv {
		w.noteReceived(s.source.config.Clock.Now())
	}
	s.pause = 0
	s.brokenSince = time.Time{}
	if version > s.maxRV {
		s.maxRV = version
		s.watchProgressed = true
	}
	switch {
	case rv == "":
	case event.Type == watch.Bookmark: // complete up to rv
		s.rv = rv
		s.partialRV = 0
	case version > 1:
		s.partialRV = version
	}
	return nil
}

// versionOf returns an event's resourceVersion, also as a number, or 0 if it is none. ok is false
// for a malformed event.
func versionOf(event watch.Event) (rv string, version uint64, ok bool) {
	object, err := meta.Accessor(event.Object)
	if err != nil {
		return "", 0, false
	}
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	default:
		return "", 0, false
	}
	rv = object.GetResourceVersion()
	version, _ = strconv.ParseUint(rv, 10, 64)
	return rv, version, true
}

// resumeAt returns the highest version up to which the stream has certainly forwarded every event.
func (s *stream) resumeAt() string {
	if s.partialRV > 0 {
		return strconv.FormatUint(s.partialRV-1, 10)
	}
	return s.rv
}

func (s *stream) send(event watch.Event) bool {
	select {
	case s.result <- event:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// sendRelist ends the Reflector's watch so that it relists. The Reflector logs the text.
func (s *stream) sendRelist() {
	s.send(Failure(apierrors.NewResourceExpired(errRelistOrdered.Error())))
}

// reopen opens a storage watch where the last one broke, without a pause if atOnce. It returns nil
// if the stream must end.
func (s *stream) reopen(atOnce bool) *Watch {
	if s.pause == 0 { // drop an answer from before the watch broke
		select {
		case <-s.source.answered:
		default:
		}
	}
	if s.brokenSince.IsZero() {
		s.brokenSince = s.source.config.Clock.Now()
	}
	for ; ; atOnce = false {
		if !atOnce {
			if err := s.waitToReopen(); err != nil {
				if errors.Is(err, errRelistOrdered) {
					s.sendRelist()
				}
				return nil
			}
		}
		if err := s.tooFarBehind(); err != nil {
			s.source.config.Owner.WatchFailed(err, false)
			s.source.config.Owner.WatchLost(metrics.RelistBehind)
			s.sendRelist()
			return nil
		}
		w, err := s.source.open(s.ctx, s.resumeAt())
		if err == nil {
			return w
		}
		if Expired(err) {
			s.source.config.Owner.WatchLost(metrics.RelistExpired)
			s.sendRelist()
			return nil
		}
		s.failed(err)
	}
}

func (s *stream) failed(err error) {
	s.source.config.Owner.WatchFailed(err, s.pause == reopenMax)
}

// waitToReopen waits for the pause, or a shorter one if storage answers a version request. An error
// means that the stream must end.
func (s *stream) waitToReopen() error {
	clock := s.source.config.Clock
	s.pause = min(max(2*s.pause, reopenMin), reopenMax)
	began := clock.Now()
	over := clock.After(s.pause)
	answered := s.source.answered
	for {
		select {
		case <-over:
			return nil
		case <-answered:
			answered = nil
			if s.pause > reopenAnswering {
				over = clock.After(max(0, reopenAnswering-clock.Since(began)))
			}
		case <-s.source.relistOrder:
			return s.relistOrdered()
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// relistOrdered handles an order from relistOrder. An ended stream returns it for the next one.
func (s *stream) relistOrdered() error {
	if err := s.ctx.Err(); err != nil {
		s.source.Relist()
		return err
	}
	return errRelistOrdered
}
