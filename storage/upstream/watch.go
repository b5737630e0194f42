// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
	"github.com/kube-watchcache/watchcache/internal/minors"
)

// Watch implements storage.Interface. The upstream filters the events. With opts.ProgressNotify,
// the Store adds bookmarks after the last event at each resourceVersion, and for each proof
// requested by RequestWatchProgress.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	q, err := s.query(key, opts)
	if err != nil {
		return nil, err
	}
	q.options.SendInitialEvents = opts.SendInitialEvents
	if opts.SendInitialEvents != nil {
		q.options.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	if err := minors.CheckWatch(opts); err != nil {
		return nil, err
	}
	from, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	q.options.AllowWatchBookmarks = opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks
	ctx, cancel := context.WithCancel(ctx)
	opened, err := s.open(ctx, q)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &stream{
		store: s, query: q, ctx: ctx, cancel: cancel, progress: opts.ProgressNotify,
		upstream: opened, result: make(chan watch.Event),
		ask: make(chan struct{}, 1), again: make(chan struct{}, 1), proofs: make(chan proof, 1),
		at: from, complete: true, ordered: from > 0 && (opts.SendInitialEvents == nil || !*opts.SendInitialEvents),
	}
	s.add(ctx, w)
	go w.run() // ends on Stop, with ctx or the upstream's watch; closes result
	return w, nil
}

func (s *Store) open(ctx context.Context, q query) (watch.Interface, error) {
	q.options.Watch = true
	opened, err := with(s.get(q.of), q.options).Watch(ctx)
	return opened, s.listed(ctx, err)
}

// stream is one watch. Its goroutine owns all fields except ask, again and proofs, which others
// fill.
type stream struct {
	store    *Store
	query    query
	ctx      context.Context
	cancel   context.CancelFunc
	progress bool // add bookmarks
	upstream watch.Interface
	result   chan watch.Event
	// ask requests progress, again another proof by an unable upstream.
	ask, again chan struct{}
	proofs     chan proof

	// at is the version of the last forwarded event or bookmark, with the number of events
	// forwarded at it. complete is true if no more can follow.
	at       uint64
	events   int
	complete bool
	// ordered is false during initial events, and before the first bookmark of a watch without a
	// start version.
	ordered bool
	// moved is the time of the last event. If asked, it is the time of the first request for
	// progress without a known later version.
	moved time.Time
	asked bool

	// proves is true while a proof runs; proving waits for it. proven is a finished proof whose
	// last event has not arrived.
	proving sync.WaitGroup
	proves  bool
	proven  *proof
}

// ResultChan implements watch.Interface.
func (w *stream) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *stream) Stop() { w.cancel() }

func (w *stream) run() {
	defer close(w.result)
	defer w.proving.Wait()
	defer w.cancel()
	defer w.store.remove(w)
	defer w.upstream.Stop()
	for {
		select {
		case event, open := <-w.upstream.ResultChan():
			if !open || !w.passAll(event) {
				return
			}
		case <-w.ask:
			w.prove(time.Now())
		case <-w.again:
			w.proveAgain()
		case p := <-w.proofs:
			w.proves = false
			if w.judge(p); !w.apply() {
				return
			}
		case <-w.ctx.Done():
			return
		}
	}
}

// passAll forwards an event and those ready after it, then the bookmark that completes the last
// one. It returns false if the watch must end.
func (w *stream) passAll(event watch.Event) bool {
	for more := true; more; {
		if !w.pass(event) {
			return false
		}
		select {
		case event, more = <-w.upstream.ResultChan():
			if !more {
				return false
			}
		default:
			more = false
		}
	}
	if w.ordered && w.events > 0 && w.complete {
		w.events = 0
		if !w.bookmark(w.at) {
			return false
		}
	}
	return w.apply()
}

// pass forwards one event. It returns false if the watch must end.
func (w *stream) pass(event watch.Event) bool {
	if event.Type == watch.Error {
		w.send(event)
		return false
	}
	version, err := versionOf(event.Object)
	if err != nil {
		w.send(failure(fmt.Errorf("an event of the upstream has no resourceVersion that can be compared: %w", err)))
		return false
	}
	if event.Type == watch.Bookmark {
		object, _ := meta.Accessor(event.Object) // can't fail after versionOf
		end := object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
		if w.ordered && (version < w.at || (version == w.at && !w.complete)) {
			return true // already covered by a proof, or another deletion may follow
		}
		w.ordered = w.ordered || end || w.query.options.SendInitialEvents == nil
		w.at, w.events, w.complete = version, 0, true
		return w.send(event)
	}
	w.moved = time.Now()
	switch {
	case w.ordered && version < w.at:
		return w.send(event) // some servers send deleted objects at their last version
	case version != w.at:
		w.events = 0
	case w.ordered && event.Type == watch.Deleted:
		w.store.leases.Store(true)
	}
	w.at = version
	w.events++
	w.complete = w.store.completes(event.Type)
	return w.send(event)
}

// completes reports whether an event of a type must be the last one at its version.
func (s *Store) completes(event watch.EventType) bool {
	return event != watch.Deleted || !(s.config.Expires || s.leases.Load())
}

func (w *stream) bookmark(version uint64) bool {
	if !w.progress {
		return true
	}
	object := w.store.config.NewFunc()
	_ = versioner.UpdateObject(object, version) // New checked that objects have metadata
	return w.send(watch.Event{Type: watch.Bookmark, Object: object})
}

// send returns false if the watch must end.
func (w *stream) send(event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// failure returns the event for an error of our own.
func failure(err error) watch.Event {
	return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}
}

// caller returns the caller's name for a watch, from its gRPC metadata.
func caller(ctx context.Context) string {
	md, _ := metadata.FromOutgoingContext(ctx)
	return strings.Join(md.Get(grpckeys.Caller), "")
}

func (s *Store) add(ctx context.Context, w *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.streams[w] = caller(ctx)
}

func (s *Store) remove(w *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.streams, w)
}

// RequestWatchProgress implements storage.Interface. It returns immediately. Watches opened with
// the same gRPC metadata as ctx prove their progress.
func (s *Store) RequestWatchProgress(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w, of := range s.mu.streams {
		if of == caller(ctx) {
			signal(w.ask)
		}
	}
	return nil
}

// signal sends to a channel unless it is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
