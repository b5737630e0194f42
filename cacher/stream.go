// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// reopenMin and reopenMax bound the pause before a broken storage watch is
	// opened again; it doubles from the one to the other.
	reopenMin = 50 * time.Millisecond
	reopenMax = 5 * time.Second
)

// ended is how a storage watch ends without an error.
var ended = failureOf(errors.New("the storage's watch ended"))

// stream is one watch of the Reflector, over as many watches of the storage as
// it takes. Its goroutine is started by source, ends with its context and is
// awaited by Stop; it ends only when the storage's watch has.
type stream struct {
	source *source
	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event

	// rv is the last resourceVersion that was passed on; the watch resumes
	// there.
	rv string
	// initial is true until the initial events are complete. Before that the
	// watch can't be resumed.
	initial bool
	// errors is how many of the storage's watches in a row have brought nothing
	// but an error; pause is how long to wait before the next one.
	errors int
	pause  time.Duration
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.result }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.cancel() }

// open opens a watch of the storage, with the initial state if options ask.
func (s *stream) open(options metav1.ListOptions) (watch.Interface, error) {
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	return s.source.storage.Watch(s.ctx, s.source.prefix, storage.ListOptions{
		ResourceVersion:      options.ResourceVersion,
		ResourceVersionMatch: options.ResourceVersionMatch,
		SendInitialEvents:    options.SendInitialEvents,
		Predicate:            predicate,
		Recursive:            true,
		ProgressNotify:       true,
		RecordTimestamps:     true,
	})
}

func (s *stream) run(from watch.Interface) {
	defer close(s.result)
	defer s.cancel()
	for from != nil {
		failure := s.pass(from)
		from.Stop()
		for range from.ResultChan() { //nolint:revive // awaits the end of the storage's watch
		}
		if s.ctx.Err() != nil {
			return
		}
		s.source.broke(apierrors.FromObject(failure.Object))
		switch {
		case s.initial, isExpired(failure):
			s.send(failure)
			return
		case s.stuck(failure):
			s.source.stuck(failure)
			s.send(listAnewStatus(apierrors.FromObject(failure.Object)))
			return
		}
		from = s.reopen()
	}
}

// pass passes the events of one storage watch on until it ends, and returns
// the error that it ended with.
func (s *stream) pass(from watch.Interface) watch.Event {
	for {
		select {
		case event, ok := <-from.ResultChan():
			switch {
			case !ok:
				return ended
			case event.Type == watch.Error:
				return event
			}
			if !s.send(event) {
				return failureOf(s.ctx.Err())
			}
			s.note(event)
		case why := <-s.source.resync:
			return listAnewStatus(why)
		case <-s.ctx.Done():
			return failureOf(s.ctx.Err())
		}
	}
}

// note remembers how far the Reflector was brought.
func (s *stream) note(event watch.Event) {
	s.errors, s.pause = 0, 0
	object, err := meta.Accessor(event.Object)
	if err != nil {
		return // the Reflector reports it
	}
	if s.initial {
		s.initial = event.Type != watch.Bookmark || object.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true"
		if s.initial {
			return // initial events come in no order
		}
	}
	s.rv = object.GetResourceVersion()
}

// stuck tells whether the storage has an event that it can't deliver: the same
// place has given an error twice, and not because the storage is away. No
// later event can come before it, but a list may tell what has become of its
// object.
func (s *stream) stuck(failure watch.Event) bool {
	if failure == ended {
		return false
	}
	s.errors++
	return s.errors > 1 && s.source.answers(s.ctx)
}

// send returns false if the stream is to end.
func (s *stream) send(event watch.Event) bool {
	select {
	case s.result <- event:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// reopen opens a new watch of the storage where the last one broke. It returns
// nil when the stream is to end.
func (s *stream) reopen() watch.Interface {
	for {
		s.pause = min(max(2*s.pause, reopenMin), reopenMax)
		select {
		case <-s.source.clock.After(s.pause):
		case why := <-s.source.resync:
			s.send(listAnewStatus(why))
			return nil
		case <-s.ctx.Done():
			return nil
		}
		from, err := s.open(metav1.ListOptions{ResourceVersion: s.rv})
		if err == nil {
			return from
		}
		if failure := failureOf(err); isExpired(failure) {
			s.send(failure)
			return nil
		}
		s.source.broke(err)
	}
}

func failureOf(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	object := status.Status()
	return watch.Event{Type: watch.Error, Object: &object}
}

// isExpired tells whether a watch can't be resumed because the storage no
// longer has the events.
func isExpired(failure watch.Event) bool {
	err := apierrors.FromObject(failure.Object)
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
