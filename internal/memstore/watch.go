// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"sort"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// storageWatch is one watch. Its goroutine ends when the context does, when it
// is stopped or broken; its channel is closed then.
type storageWatch struct {
	store     *Store
	ctx       context.Context
	cancel    context.CancelFunc
	key       string
	recursive bool
	result    chan watch.Event

	// Guarded by store.mu.

	next     uint64 // all changes below it were sent
	parts    int    // and so many of those at it
	ends     bool   // it is to be told where a revision ends
	progress bool   // a progress notification is asked for
	broken   *watch.Event
	injected []watch.Event
	hang     *hanging // nil: it does not
}

func (w *storageWatch) ResultChan() <-chan watch.Event { return w.result }
func (w *storageWatch) Stop()                          { w.cancel() }

// Watch implements storage.Interface, for watches over everything as a cache
// opens them: predicates are ignored.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := s.request(ctx, "watch"); err != nil {
		return nil, err
	}
	key, err := storage.PrepareKey(s.prefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &storageWatch{
		store: s, ctx: ctx, cancel: cancel, key: key, recursive: opts.Recursive,
		result: make(chan watch.Event, 100), ends: opts.ProgressNotify,
	}
	var initial []watch.Event
	s.mu.Lock()
	if streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents; streamed || rv == 0 {
		if corrupt := s.corruptLocked(s.mu.rv); corrupt != nil {
			s.mu.Unlock()
			cancel()
			return nil, corrupt
		}
	}
	w.next = rv + 1
	if streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents; streamed || rv == 0 {
		w.next = s.mu.rv + 1
		for _, k := range keysOf(s.mu.objects, key, opts.Recursive, "") {
			initial = append(initial, watch.Event{Type: watch.Added, Object: s.mu.objects[k]})
		}
		if streamed && opts.Predicate.AllowWatchBookmarks {
			end := s.bookmark(s.mu.rv)
			if err := storage.AnnotateInitialEventsEndBookmark(end.Object); err != nil {
				panic(err)
			}
			initial = append(initial, end)
		}
	}
	w.faultLocked()
	s.mu.watches[w] = struct{}{}
	s.mu.Unlock()
	go w.run(initial)
	return w, nil
}

// decoded returns what a reader gets of a stored object.
func (s *Store) decoded(object runtime.Object) runtime.Object {
	if s.Decodes {
		return object.DeepCopyObject()
	}
	return object
}

func (s *Store) bookmark(rv uint64) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: s.at(s.newObject(), rv)}
}

func (w *storageWatch) run(initial []watch.Event) {
	defer close(w.result)
	defer w.cancel()
	defer w.leave()
	defer w.awaitRelease()
	for _, event := range initial {
		if !w.send(event) {
			return
		}
	}
	for {
		events, changed, ended := w.take()
		for _, event := range events {
			if !w.send(event) {
				return
			}
		}
		if ended {
			return
		}
		select {
		case <-changed:
		case <-w.ctx.Done():
			return
		}
	}
}

// take returns what is to be sent now, and what to wait for after that.
func (w *storageWatch) take() (events []watch.Event, changed chan struct{}, ended bool) {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	events, w.injected = w.injected, nil
	if w.broken != nil {
		if w.broken.Object != nil {
			events = append(events, *w.broken)
		}
		return events, nil, true
	}
	if w.hang != nil {
		return append(events, w.hungLocked()...), s.mu.changed, false
	}
	if s.mu.held {
		return events, s.mu.changed, false
	}
	if w.next <= s.mu.compacted && w.next <= s.mu.rv {
		status := apierrors.NewResourceExpired("memstore: the version has been compacted").Status()
		return []watch.Event{{Type: watch.Error, Object: &status}}, nil, true
	}
	first := sort.Search(len(s.mu.log), func(i int) bool { return s.mu.log[i].rv >= w.next })
	log := s.mu.log[min(len(s.mu.log), first+w.parts):]
	for i, c := range log {
		if s.mu.unfinished != 0 && (c.rv > s.mu.unfinished || c.rv == s.mu.unfinished && w.partsOf(c.rv) == s.mu.parts) {
			w.next, w.parts = c.rv, w.partsOf(c.rv)
			return events, s.mu.changed, false
		}
		w.passed(c.rv)
		if corrupt := s.corruptLocked(c.rv); corrupt != nil {
			status := corrupt.Status()
			return append(events, watch.Event{Type: watch.Error, Object: &status}), nil, true
		}
		if c.key == w.key || (w.recursive && strings.HasPrefix(c.key, w.key)) {
			events = append(events, s.event(c))
			if last := i+1 == len(log) || log[i+1].rv != c.rv; last && w.ends && !s.mu.silent && c.rv != s.mu.unfinished {
				events = append(events, s.bookmark(c.rv))
			}
		}
	}
	if w.progress && s.mu.rv+1 >= w.next {
		events = append(events, s.bookmark(s.mu.rv))
	}
	w.progress = false
	w.next, w.parts = max(w.next, s.mu.rv+1), 0
	return events, s.mu.changed, false
}

// passed counts an event of the revision rv.
func (w *storageWatch) passed(rv uint64) {
	w.parts = w.partsOf(rv) + 1
	w.next = rv
}

// partsOf returns how many events of the revision rv, which is not below next,
// were sent.
func (w *storageWatch) partsOf(rv uint64) int {
	if rv != w.next {
		return 0
	}
	return w.parts
}

func (w *storageWatch) send(event watch.Event) bool {
	event.Object = w.store.decoded(event.Object)
	select {
	case w.result <- event:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *storageWatch) leave() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	delete(w.store.mu.watches, w)
}

// RequestWatchProgress implements storage.Interface.
func (s *Store) RequestWatchProgress(ctx context.Context) error {
	if err := s.request(ctx, "progress"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watches {
		w.progress = true
	}
	s.changedLocked()
	return nil
}

// WatchProgress reports that progress requests are answered.
func (s *Store) WatchProgress() bool { return true }
