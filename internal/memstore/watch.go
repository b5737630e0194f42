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
	if streamed := opts.SendInitialEvents != nil && *opts.SendInitialEvents; streamed || opts.ResourceVersion == "" || opts.ResourceVersion == "0" {
		s.mu.Lock()
		err := s.undecodableLocked(s.state.RV)
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return mvcc.Watch(ctx, s.core, key, opts, func(w *mvcc.Watcher) mvcc.Fault {
		f := &faulty{Watcher: w, store: s}
		if s.faults.ending != nil {
			f.broken = s.faults.ending
		}
		if s.faults.hang != nil && s.faults.hang.Next > 0 {
			s.faults.hang.Next--
			f.hang = s.faults.hang
		}
		s.faults.watches[f] = struct{}{}
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

// Judge implements mvcc.Fault: it lets a watch take one change at a time.
func (w *faulty) Judge(pending []mvcc.Change) (first []watch.Event, most int, err error) {
	s := w.store
	first, w.injected = w.injected, nil
	next := uint64(0)
	if len(pending) > 0 {
		next = pending[0].After.RV
	}
	if next != w.revision {
		w.revision, w.parts = next, 0
	}
	switch corrupt := s.undecodableLocked(next); {
	case w.broken != nil:
		return first, 0, w.broken
	case w.hang != nil:
		if w.Asked && w.hang.Stale {
			first = append(first, w.Bookmark(w.RV))
		}
		w.Asked = false
		return first, -1, nil
	case s.faults.held, s.faults.unfinished != 0 && (next > s.faults.unfinished || next == s.faults.unfinished && w.parts == s.faults.parts):
		return first, -1, nil
	case corrupt != nil:
		return first, 0, corrupt
	}
	w.parts++
	w.Quiet = s.faults.silent || s.faults.unfinished != 0 && next == s.faults.unfinished
	return first, 1, nil
}

// End implements mvcc.Fault.
func (w *faulty) End() {
	w.store.mu.Lock()
	hang := w.hang
	w.store.mu.Unlock()
	if hang != nil && hang.Stubborn {
		<-hang.released
	}
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	delete(w.store.faults.watches, w)
}
