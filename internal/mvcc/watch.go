// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/ptr"
	"k8s.io/utils/third_party/forked/golang/btree"
)

const (
	watchBuffer = 100  // events in a watch's channel
	batchSize   = 1000 // changes that a watch takes at a time
)

// Watcher is one watch. Watch starts its goroutine, which ends with the context, when
// the watch is stopped, or after an ERROR event, and closes the channel; nobody awaits it.
type Watcher struct {
	store  *Store
	cancel context.CancelFunc
	key    string
	opts   storage.ListOptions
	result chan watch.Event
	// Quiet: a bookmark comes only when one is requested, not where a version ends. For a
	// Source around the watch, which may set it in Next.
	Quiet bool

	// Only the goroutine uses these: the state that the watch begins with, until it was
	// taken, and its version.
	view  *btree.BTree[*version]
	start uint64

	// Guarded by store.mu.

	last     *change // up to where changes were taken; nil if what follows is gone
	rv       uint64  // all changes up to it were taken
	progress bool    // a bookmark is requested
}

// Source gives the goroutine of a watch its events. It is the Watcher, or something that
// the owner of the store has put around it.
type Source interface {
	// Next returns the next events, and a channel that is closed when there may be more,
	// nil if there are more now. After an error the watch ends, with an ERROR event if
	// the error is a status.
	Next() (events []watch.Event, changed <-chan struct{}, err error)
	// End is called once, before the watch's channel is closed.
	End()
}

// ResultChan implements watch.Interface.
func (w *Watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *Watcher) Stop() { w.cancel() }

// Watch implements storage.Interface. A watch from a version that the store does not
// have, or has not reached, gets a 410, as does one that falls behind by more than
// Config.Behind.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return Watch(ctx, s, key, opts, func(w *Watcher) Source { return w })
}

// Watch is the method of that name with something around the watch.
func Watch(ctx context.Context, s *Store, key string, opts storage.ListOptions, around func(*Watcher) Source) (watch.Interface, error) {
	key, err := storage.PrepareKey(s.config.Prefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{store: s, cancel: cancel, key: key, opts: opts, result: make(chan watch.Event, watchBuffer)}
	if rv == 1 {
		rv = s.config.Start // the empty store, as in etcd; no clock gives it to another process
	}
	w.begin(rv, ptr.Deref(opts.SendInitialEvents, rv == 0))
	go w.run(ctx, around(w))
	return w, nil
}

func (w *Watcher) begin(rv uint64, withState bool) {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.watches[w] = struct{}{}
	w.start, w.rv = s.mu.rv, rv
	switch {
	case rv > s.mu.rv && s.config.History > 0: // of another process
	case withState:
		w.view, w.rv, w.last = s.mu.tree.Clone(), s.mu.rv, s.mu.newest
	case rv == 0:
		w.rv, w.last = s.mu.rv, s.mu.newest
	case rv >= s.floorLocked():
		w.last = s.mu.oldest
	}
}

func (w *Watcher) run(ctx context.Context, source Source) {
	defer close(w.result)
	defer w.cancel()
	defer source.End()
	for {
		events, changed, err := source.Next()
		if status, ok := err.(apierrors.APIStatus); ok {
			failure := status.Status()
			events = append(events, watch.Event{Type: watch.Error, Object: &failure})
		}
		for _, event := range events {
			select {
			case w.result <- event:
			case <-ctx.Done():
				return
			}
		}
		switch {
		case err != nil:
			return
		case changed == nil:
			continue
		}
		flowcontrol.WatchInitialized(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// End implements Source.
func (w *Watcher) End() {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	delete(w.store.mu.watches, w)
}

// Next implements Source.
func (w *Watcher) Next() ([]watch.Event, <-chan struct{}, error) {
	if w.view != nil {
		events, err := w.state()
		return events, nil, err
	}
	return w.Take(batchSize)
}

// state returns the state that the watch begins with, and its end, if the client has
// asked for that.
func (w *Watcher) state() (events []watch.Event, err error) {
	for v := range scan(w.view, w.key, w.opts.Recursive, "") {
		if events, err = w.told(events, &change{after: v}); err != nil {
			return events, err
		}
	}
	w.view = nil
	if w.opts.SendInitialEvents == nil || !w.opts.Predicate.AllowWatchBookmarks {
		return events, nil
	}
	end := w.Bookmark(w.start)
	return append(events, end), storage.AnnotateInitialEventsEndBookmark(end.Object)
}

// Take returns, as Next does, the events of the next changes, of at most so many.
func (w *Watcher) Take(most int) (events []watch.Event, changed <-chan struct{}, err error) {
	changes, bookmark, changed, err := w.take(most)
	for _, c := range changes {
		if events, err = w.told(events, c); err != nil {
			return events, nil, err
		}
	}
	if bookmark > 0 {
		events = append(events, w.Bookmark(bookmark))
	}
	return events, changed, err
}

// take returns the next changes and the version of the bookmark after them, 0 for none.
func (w *Watcher) take(most int) (changes []*change, bookmark uint64, changed <-chan struct{}, err error) {
	s := w.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.last == nil || w.rv < min(s.mu.compacted, s.mu.rv) {
		return nil, 0, nil, apierrors.NewResourceExpired(fmt.Sprintf("the watch is at a resourceVersion of another process, or too old: the store has %d to %d", s.floorLocked(), s.mu.rv))
	}
	next := w.nextLocked()
	for ; next != nil && len(changes) < most; next = w.nextLocked() {
		w.last = next
		changes = append(changes, next)
	}
	through := s.mu.rv
	if next != nil {
		through = next.after.rv - 1
	} else {
		changed = s.mu.changed
	}
	switch {
	case w.progress && next == nil && through >= w.rv:
		w.progress, bookmark = false, through
	case w.opts.ProgressNotify && !w.Quiet && len(changes) > 0 && through >= w.last.after.rv:
		bookmark = w.last.after.rv // no more changes of this version can come
	}
	w.rv = max(w.rv, through)
	return changes, bookmark, changed, nil
}

// nextLocked returns the first change that the watch has not had.
func (w *Watcher) nextLocked() *change {
	for w.last.next != nil && w.last.next.after.rv <= w.rv {
		w.last = w.last.next
	}
	return w.last.next
}

// told adds the event that a change is to a client with the watch's selection, if any.
func (w *Watcher) told(events []watch.Event, c *change) ([]watch.Event, error) {
	if !inScope(c.after.key, w.key, w.opts.Recursive) {
		return events, nil
	}
	had, before := w.selects(c.before)
	has, after := w.selects(c.after)
	switch {
	case before != nil || after != nil:
		return events, cmp.Or(before, after)
	case had && has:
		events = append(events, watch.Event{Type: watch.Modified, Object: c.after.object})
	case has:
		events = append(events, watch.Event{Type: watch.Added, Object: c.after.object})
	case had:
		events = append(events, watch.Event{Type: watch.Deleted, Object: withVersion(c.before.object, nil, c.after.rv)})
	}
	return events, nil
}

func (w *Watcher) selects(v *version) (bool, error) {
	if v == nil || v.object == nil {
		return false, nil
	}
	ok, err := w.opts.Predicate.Matches(v.object)
	if err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("selecting %q: %w", v.key, err))
	}
	return ok, nil
}

// Bookmark returns the event that says that all changes up to rv were sent.
func (w *Watcher) Bookmark(rv uint64) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: withVersion(w.store.config.NewFunc(), nil, rv)}
}

// RequestWatchProgress implements storage.Interface.
func (s *Store) RequestWatchProgress(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.watches {
		w.progress = w.opts.ProgressNotify
	}
	s.wakeLocked()
	return ctx.Err()
}
