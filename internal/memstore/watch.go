// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/mvcc"
)

// faulty is the faults of one watch.
type faulty struct {
	*mvcc.Watcher
	store *Store

	// Guarded by store.mu.

	broken   error // what the watch ends with
	injected []watch.Event
	hang     *hanging // nil: it does not
	revision uint64   // of the last event that was taken
	parts    int      // how many of that revision were
}

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := s.request(ctx, "watch"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents; streamed || opts.ResourceVersion == "" || opts.ResourceVersion == "0" {
		if err := s.undecodableLocked(s.now()); err != nil {
			return nil, err
		}
	}
	return mvcc.Watch(ctx, s.core, key, opts, func(w *mvcc.Watcher) mvcc.Source {
		f := &faulty{Watcher: w, store: s}
		if s.mu.ending != nil {
			f.broken = s.mu.ending
		}
		if s.mu.hang != nil && s.mu.hang.Next > 0 {
			s.mu.hang.Next--
			f.hang = s.mu.hang
		}
		s.mu.watches[f] = struct{}{}
		return f
	})
}

// Next implements mvcc.Source.
func (w *faulty) Next() ([]watch.Event, <-chan struct{}, error) {
	events, changed, err := w.next()
	for i := range events {
		if w.store.Decodes {
			events[i].Object = events[i].Object.DeepCopyObject()
		}
	}
	return events, changed, err
}

// next applies the faults that are in force to everything but the state that a watch
// begins with.
func (w *faulty) next() ([]watch.Event, <-chan struct{}, error) {
	if w.Initial() {
		return w.Watcher.Next()
	}
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	events := w.injected
	w.injected = nil
	at, next := w.Position()
	if next != w.revision {
		w.revision, w.parts = next, 0
	}
	switch corrupt := s.undecodableLocked(next); {
	case w.broken != nil:
		return events, nil, w.broken
	case w.hang != nil:
		if w.Asked() && w.hang.Stale {
			events = append(events, w.Bookmark(at))
		}
		return events, mvcc.Changed(s.core), nil
	case s.mu.held, s.mu.unfinished != 0 && (next > s.mu.unfinished || next == s.mu.unfinished && w.parts == s.mu.parts):
		return events, mvcc.Changed(s.core), nil
	case corrupt != nil:
		return events, nil, corrupt
	}
	w.parts++
	w.Quiet = s.mu.silent || s.mu.unfinished != 0 && next == s.mu.unfinished
	most := 1
	if next == 0 {
		most = 0 // a change that is made just now was not judged
	}
	more, changed, err := w.Take(most)
	return append(events, more...), changed, err
}

// End implements mvcc.Source.
func (w *faulty) End() {
	w.store.mu.Lock()
	hang := w.hang
	w.store.mu.Unlock()
	if hang != nil && hang.Stubborn {
		<-hang.released
	}
	w.store.mu.Lock()
	delete(w.store.mu.watches, w)
	w.store.mu.Unlock()
	w.Watcher.End()
}
