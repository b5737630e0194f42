// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// reopenMin and reopenMax bound the pause before a broken storage watch is
	// opened again; it doubles from the one to the other. reopenAnswering is the
	// pause once the storage has answered a version request meanwhile.
	reopenMin       = 50 * time.Millisecond
	reopenMax       = 5 * time.Second
	reopenAnswering = 200 * time.Millisecond
	// initialPatience is how long a storage may send nothing before the end of
	// the initial events, after which the cache lists instead.
	initialPatience = 5 * time.Second
	// abandonedMost bounds the storage watches that were given up because they
	// hung and that have not ended yet.
	abandonedMost = 8
)

var (
	// ended is how a storage watch ends without an error.
	ended = Failure(errors.New("the storage's watch ended"))
	// hung is how a storage watch ends because it hangs and was given up.
	hung = Failure(errors.New("the storage's watch hangs: it is behind the storage and brings nothing"))
	// ignored and endless are how a storage watch ends whose storage takes no
	// notice of the request for the initial state: the watch brings nothing, or
	// reports progress and not the end of the initial events.
	ignored = Failure(errors.New("the storage does not stream its state"))
	endless = Failure(errors.New("the storage does not mark the end of its state"))
	// malformed is how a storage watch ends that brings an event which the Reflector would
	// leave out, and log with the object.
	malformed = Failure(errors.New("the storage's watch has brought an event of an unknown type, or without metadata"))
)

// stream is one watch of the Reflector, over as many watches of the storage as
// it takes, one at a time. The package comment has the life of its goroutine.
type stream struct {
	source *Source
	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	// rv: everything up to it has been passed on. within is the version of the last event
	// after it, 0 if there was none; more events of that version may follow.
	rv     string
	within uint64
	// initial is true until the initial events are complete. Before that the
	// watch can't be resumed.
	initial bool
	// fill has the initial events, nil once they are complete; shown is when the
	// Reflector was last shown one of them.
	fill  Fill
	shown time.Time
	// skip is the resourceVersion of the list before the stream. A watch from before the
	// list brings events up to there, which the list already has.
	skip uint64
	// furthest is how far the storage's watches have come. came: the open one has come
	// further than earlier ones. advanced: one of them has come further than the beginning.
	furthest       uint64
	came, advanced bool
	// hasAnswered: the storage answered a version request before the watch was opened.
	// judged counts the errors in a row that undeliverable has judged.
	hasAnswered bool
	judged      int
	// pause is how long to wait before the next watch is opened.
	pause time.Duration
	// broken is when the storage's watch broke; zero once one has brought
	// something again.
	broken time.Time
	// abandoned has an entry for each watch that was given up and has not ended.
	abandoned chan struct{}
}

func newStream(source *Source, ctx context.Context, options metav1.ListOptions) *stream {
	ctx, cancel := context.WithCancel(ctx)
	return &stream{
		source: source, ctx: ctx, cancel: cancel,
		result:    make(chan watch.Event, 1),
		rv:        options.ResourceVersion,
		initial:   options.SendInitialEvents != nil && *options.SendInitialEvents,
		abandoned: make(chan struct{}, abandonedMost),
	}
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.cancel() }

func (s *stream) run(from *Watch) {
	defer close(s.result)
	defer s.cancel()
	for from != nil {
		failure := s.pass(from)
		s.leave(from, failure == hung)
		if s.ctx.Err() != nil {
			return
		}
		err := apierrors.FromObject(failure.Object)
		if failure != relist { // which was ordered
			s.broke(err)
		}
		switch {
		case s.initial:
			s.source.notStreamed(failure)
			// Anything but "expired", at which the Reflector would ask for the
			// initial state again, makes it list.
			s.send(unstreamed)
			return
		case Expired(failure):
			// A watch that has expired before it brought anything expires again
			// if the next fill is as slow.
			s.source.listNext.Store(!s.advanced)
			s.source.config.Relists(metrics.RelistExpired)
			s.send(relist)
			return
		case s.undeliverable(from, failure):
			s.source.config.Undeliverable(err)
			s.send(relist)
			return
		}
		from = s.reopen(failure == hung)
	}
}

// leave ends a storage watch. The end of one that hangs is not waited for, as
// long as there are few of them.
func (s *stream) leave(from *Watch, hangs bool) {
	from.end()
	s.source.current.CompareAndSwap(from, nil)
	if hangs {
		select {
		case s.abandoned <- struct{}{}:
			// Awaited by Config.Tasks; ends with the storage's watch.
			if s.source.config.Tasks.Run(func() { from.drain(); <-s.abandoned }) {
				return
			}
		case <-s.ctx.Done():
		}
	}
	from.drain()
}

// pass passes the events of one storage watch on until it ends, and returns
// the error that it ended with.
func (s *stream) pass(from *Watch) watch.Event {
	s.came = false
	if s.initial {
		if failure, ok := s.passInitial(from); !ok {
			return failure
		}
	}
	for {
		if failure, ok := s.passOne(from, nil); !ok {
			return failure
		}
	}
}

// passInitial passes the initial events on, until they are complete. It gives up when
// nothing comes for too long: a storage may take no notice of the request for them.
func (s *stream) passInitial(from *Watch) (failure watch.Event, ok bool) {
	silence := s.source.config.Clock.NewTimer(initialPatience)
	defer silence.Stop()
	for passed := 0; s.initial; {
		if failure, ok = s.passOne(from, silence.C()); ok {
			passed++
			continue
		}
		if failure != ignored || passed == 0 {
			return failure, false
		}
		silence.Reset(initialPatience)
		passed = 0
	}
	return watch.Event{}, true
}

// passOne passes the next event on. It returns false and an error when
// there is none.
func (s *stream) passOne(from *Watch, silence <-chan time.Time) (failure watch.Event, ok bool) {
	select {
	case event, open := <-from.ResultChan():
		switch {
		case !open:
			return ended, false
		case event.Type == watch.Error:
			return event, false
		case s.initial && event.Type != watch.Bookmark:
			return s.take(from, event)
		}
		return s.passEvent(from, event)
	case <-from.hung:
		return hung, false
	case <-silence:
		return ignored, false
	case <-s.source.relistOrder:
		if s.over() {
			return Failure(s.ctx.Err()), false
		}
		return relist, false
	case <-s.ctx.Done():
		return Failure(s.ctx.Err()), false
	}
}

// passEvent passes on an event, or the bookmark at the end of the initial events.
func (s *stream) passEvent(from *Watch, event watch.Event) (failure watch.Event, ok bool) {
	rv, version, end, ok := versionOf(event)
	if !ok {
		return malformed, false
	}
	if s.initial && !end {
		return endless, false
	}
	if version != 0 && version <= s.skip {
		from.heard.Add(1)
		return watch.Event{}, true
	}
	if s.initial {
		s.source.setFilled(s.fill, s)
		s.fill = nil
	}
	from.busy.Store(true)
	sent := s.send(event)
	from.busy.Store(false)
	if !sent {
		return Failure(s.ctx.Err()), false
	}
	if event.Type != watch.Bookmark || rv != s.rv {
		from.hears(s.source.config.Clock.Now())
	}
	s.pause, s.broken = 0, time.Time{}
	if s.initial {
		s.initial = false
		s.furthest = version
	} else if version > s.furthest {
		s.furthest, s.came, s.advanced = version, true, true
	}
	switch {
	case rv == "":
	case event.Type == watch.Bookmark: // all up to it has come
		s.rv, s.within = rv, 0
	case version > 1: // more of it may follow
		s.within = version
	}
	return watch.Event{}, true
}

// versionOf returns an event's resourceVersion, as a number too if it is one, and whether the
// event ends the initial ones. ok is false for an event that no watch should bring.
func versionOf(event watch.Event) (rv string, version uint64, end, ok bool) {
	object, err := meta.Accessor(event.Object)
	if err != nil {
		return "", 0, false, false
	}
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	default:
		return "", 0, false, false
	}
	rv = object.GetResourceVersion()
	version, _ = strconv.ParseUint(rv, 10, 64)
	end = event.Type == watch.Bookmark && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	return rv, version, end, true
}

// resumeAt returns the last resourceVersion that is known to have been passed on whole.
func (s *stream) resumeAt() string {
	if s.within > 0 {
		return strconv.FormatUint(s.within-1, 10)
	}
	return s.rv
}

// send returns false if the stream must end.
func (s *stream) send(event watch.Event) bool {
	select {
	case s.result <- event:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// reopen opens a new watch of the storage where the last one broke, at once if
// it was given up though the storage is there. It returns nil when the
// stream must end.
func (s *stream) reopen(atOnce bool) *Watch {
	if s.pause == 0 { // an answer may have come while a watch was opened that has brought nothing
		select {
		case <-s.source.answered:
		default:
		}
	}
	if s.broken.IsZero() {
		s.broken = s.source.config.Clock.Now()
	}
	for ; ; atOnce = false {
		if !atOnce && !s.waitToReopen() {
			return nil
		}
		if err := s.tooFarBehind(); err != nil {
			s.source.config.Broke(err)
			s.source.config.Relists(metrics.RelistBehind)
			s.send(relist)
			return nil
		}
		from, err := s.source.open(s.ctx, metav1.ListOptions{ResourceVersion: s.resumeAt()})
		if err == nil {
			return from
		}
		if failure := Failure(err); Expired(failure) {
			s.source.config.Relists(metrics.RelistExpired)
			s.send(relist)
			return nil
		}
		s.broke(err)
	}
}

// broke reports a watch that ended or could not be opened.
func (s *stream) broke(err error) {
	s.source.config.Broke(err)
	if s.pause == reopenMax {
		s.source.config.StaysBroken(err)
	}
}

// waitToReopen waits before a watch is opened again: for the pause, or for a short one
// after the storage has answered a version request. It returns false when the
// stream must end.
func (s *stream) waitToReopen() bool {
	s.pause = min(max(2*s.pause, reopenMin), reopenMax)
	began := s.source.config.Clock.Now()
	over, answered := s.source.config.Clock.After(s.pause), s.source.answered
	for {
		select {
		case <-over:
			return true
		case <-answered:
			answered = nil
			if s.pause > reopenAnswering {
				over = s.source.config.Clock.After(max(0, reopenAnswering-s.source.config.Clock.Since(began)))
			}
		case <-s.source.relistOrder:
			if !s.over() {
				s.send(relist)
			}
			return false
		case <-s.ctx.Done():
			return false
		}
	}
}

// over reports whether the stream has ended. An order to list again that such a
// stream has taken is meant for the next one, and given back.
func (s *stream) over() bool {
	if s.ctx.Err() == nil {
		return false
	}
	s.source.Relist()
	return true
}

// Failure is the watch event that carries err: its API status if it has one, and
// otherwise that of an internal error.
func Failure(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	return watch.Event{Type: watch.Error, Object: &object}
}

// Expired reports whether a watch can't be resumed because the storage no
// longer has the events.
func Expired(failure watch.Event) bool {
	err := apierrors.FromObject(failure.Object)
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
