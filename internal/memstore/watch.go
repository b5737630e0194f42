// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/mvcc"
)

type faulty struct {
	*mvcc.Watcher
	store *Store

	// Guarded by store.mu.

	broken   error // ends the watch
	injected []watch.Event
	hang     *hanging // nil unless hanging
	revision uint64   // of the last change taken
	parts    int      // changes taken of this revision
}

// Watch implements storage.Interface.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if err := s.request(ctx, "watch"); err != nil {
		return nil, err
	}
	if streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents; streamed || opts.ResourceVersion == "" || opts.ResourceVersion == "0" {
		s.mu.Lock()
		err := s.undecodableLocked(s.state.RV)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return mvcc.Watch(ctx, s.core, key, opts, func(w *mvcc.Watcher) mvcc.Fault {
		w.Most = 1
		f := &faulty{Watcher: w, store: s}
		if s.faults.ending != nil {
			f.broken = s.faults.ending
		}
		if s.faults.hang != nil && s.faults.hang.Next > 0 {
			s.faults.hang.Next--
			f.hang = s.faults.hang
		}
		return f
	})
}

// Sent implements mvcc.Fault.
func (w *faulty) Sent(event watch.Event) watch.Event {
	if w.store.Decodes {
		event.Object = event.Object.DeepCopyObject()
	}
	return event
}

// Take implements mvcc.Fault. Without faults, a watch takes one change at a time.
func (w *faulty) Take() mvcc.Step {
	s, next := w.store, uint64(0)
	if pending := w.Pending(); len(pending) > 0 {
		next = pending[0].After.RV
	}
	if next != w.revision {
		w.revision, w.parts = next, 0
	}
	wait := mvcc.Step{Changed: s.state.Changed}
	switch corrupt := s.undecodableLocked(next); {
	case len(w.injected) > 0:
		step := mvcc.Step{Others: w.injected}
		w.injected = nil
		return step
	case w.broken != nil:
		return mvcc.Step{Err: w.broken}
	case w.hang != nil:
		if w.Asked && w.hang.Stale {
			wait.Others = []watch.Event{w.Bookmark(w.RV)}
		}
		w.Asked = false
		return wait
	case s.faults.held, s.faults.unfinished != 0 && (next > s.faults.unfinished || next == s.faults.unfinished && w.parts == s.faults.parts):
		return wait
	case corrupt != nil:
		return mvcc.Step{Err: corrupt}
	}
	w.parts++
	asked := w.Asked
	step := w.Watcher.Take()
	if asked == w.Asked && (s.faults.silent || s.faults.unfinished != 0 && next == s.faults.unfinished) {
		step.Others = nil // this is not the end of the revision
	}
	return step
}

// End implements mvcc.Fault.
func (w *faulty) End() {
	w.store.mu.Lock()
	hang := w.hang
	w.store.mu.Unlock()
	if hang != nil && hang.Stubborn {
		<-hang.released
	}
	w.Watcher.End()
}
