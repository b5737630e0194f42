// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"cmp"
	"context"
	"fmt"
	"slices"

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

// Watcher is one watch: a position in the log of the Store. Watch starts its goroutine,
// which ends with the context, when the watch is stopped, or after an ERROR event, and
// closes the channel; nobody awaits it.
type Watcher struct {
	store  *Store
	fault  Fault
	cancel context.CancelFunc
	key    string
	opts   storage.ListOptions
	result chan watch.Event

	// Guarded by the Store's lock.

	// RV: no changes up to it are left to take.
	RV uint64
	// Asked: a bookmark is requested. Quiet: bookmarks come only then, not where a
	// version ends.
	Asked, Quiet bool
	next         int // the number of the next change; -1 if that is gone
}

// Fault lets a test disturb a watch.
type Fault interface {
	// Judge is called with the Store locked, whenever the watch could go on, with the
	// changes that it has not taken. It returns events to send first, and how many of the
	// changes may follow; below 0, nothing follows until it is called again. After an
	// error the watch ends, with an ERROR event if the error is a status.
	Judge(pending []Change) (first []watch.Event, most int, err error)
	// Sent returns the event to send in place of another one.
	Sent(event watch.Event) watch.Event
	// End is called once, before the watch's channel is closed.
	End()
}

type noFault struct{}

func (noFault) Judge([]Change) ([]watch.Event, int, error) { return nil, batchSize, nil }
func (noFault) Sent(event watch.Event) watch.Event         { return event }
func (noFault) End()                                       {}

// ResultChan implements watch.Interface.
func (w *Watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *Watcher) Stop() { w.cancel() }

// Watch implements storage.Interface. A watch from a version that the store does not
// have, or has not reached, gets a 410, as does one that falls behind by more than
// Config.Behind.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return Watch(ctx, s, key, opts, func(*Watcher) Fault { return noFault{} })
}

// Watch is the method of that name with faults, which are made with the Store locked.
func Watch(ctx context.Context, s *Store, key string, opts storage.ListOptions, faults func(*Watcher) Fault) (watch.Interface, error) {
	key, err := storage.PrepareKey(s.config.Prefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	if rv == 1 {
		rv = s.config.Start // the empty store, as in etcd; no clock gives it to another process
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{store: s, cancel: cancel, key: key, opts: opts, result: make(chan watch.Event, watchBuffer), RV: rv}
	var state *btree.BTree[*Version]
	s.mu.Lock()
	defer s.mu.Unlock()
	switch withState := ptr.Deref(opts.SendInitialEvents, rv == 0); {
	case rv > s.mu.RV && s.config.History > 0, rv > 0 && rv < s.mu.floor && !withState:
		w.next = -1 // of another process, or too old
	case withState:
		state = s.mu.tree.Clone()
		w.Skip()
	case rv == 0:
		w.Skip()
	default:
		w.next = s.mu.after(rv)
	}
	w.fault = faults(w)
	s.mu.watches[w] = struct{}{}
	go w.run(ctx, state, w.RV)
	return w, nil
}

// Skip has the watch miss the changes that it has not taken. The Store is locked.
func (w *Watcher) Skip() { w.RV, w.next = w.store.mu.RV, w.store.mu.after(w.store.mu.RV) }

// step is one batch of a watch: the events of changes, with others before and after them.
type step struct {
	first   []watch.Event
	changes []Change
	last    []watch.Event
	err     error           // the watch ends with it
	changed <-chan struct{} // closed when there may be more; nil: there is more now
}

// run begins with the state, which is that of rv, unless it is nil.
func (w *Watcher) run(ctx context.Context, state *btree.BTree[*Version], rv uint64) {
	defer w.end()
	next := step{}
	if state != nil {
		next = w.initial(state, rv)
	}
	for ; ; next = w.take() {
		events, err := w.events(next)
		if status, ok := err.(apierrors.APIStatus); ok {
			failure := status.Status()
			events = append(events, watch.Event{Type: watch.Error, Object: &failure})
		}
		for _, event := range events {
			select {
			case w.result <- w.fault.Sent(event):
			case <-ctx.Done():
				return
			}
		}
		switch {
		case err != nil:
			return
		case next.changed == nil:
			continue
		}
		flowcontrol.WatchInitialized(ctx)
		select {
		case <-next.changed:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Watcher) end() {
	w.cancel()
	w.fault.End()
	w.store.mu.Lock()
	delete(w.store.mu.watches, w)
	w.store.mu.Unlock()
	close(w.result)
}

// initial returns the state, and its end if the client has asked for that.
func (w *Watcher) initial(state *btree.BTree[*Version], rv uint64) (next step) {
	for v := range scan(state, w.key, w.opts.Recursive, "") {
		next.changes = append(next.changes, Change{After: v})
	}
	if w.opts.SendInitialEvents != nil && w.opts.Predicate.AllowWatchBookmarks {
		end := w.Bookmark(rv)
		next.last, next.err = []watch.Event{end}, storage.AnnotateInitialEventsEndBookmark(end.Object)
	}
	return next
}

// take takes the next changes.
func (w *Watcher) take() (next step) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	st := &w.store.mu.State
	var pending []Change
	gone := w.next < st.first || w.next > st.first+len(st.log) // forgotten, or undone by Restore
	if !gone {
		w.next = max(w.next, st.after(w.RV))
		pending = st.log[w.next-st.first:]
	}
	first, most, err := w.fault.Judge(pending)
	switch {
	case err != nil || most < 0:
		return step{first: first, changed: st.Changed, err: err}
	case gone:
		return step{first: first, err: apierrors.NewResourceExpired(fmt.Sprintf("the watch is at a resourceVersion of another process, or too old: the store has %d to %d", st.floor, st.RV))}
	}
	n, through, taken := min(most, len(pending)), st.RV, uint64(0)
	next.first, next.changes = first, slices.Clone(pending[:n])
	w.next += n
	if n > 0 {
		taken = pending[n-1].After.RV
	}
	if n < len(pending) {
		through = pending[n].After.RV - 1
	} else {
		next.changed = st.Changed
	}
	switch {
	case through < max(w.RV, taken): // there is more of this version, or it is one to come
	case w.Asked && n == len(pending):
		w.Asked, next.last = false, []watch.Event{w.Bookmark(through)}
	case w.opts.ProgressNotify && !w.Quiet && n > 0:
		next.last = []watch.Event{w.Bookmark(taken)}
	}
	w.RV = max(w.RV, through)
	return next
}

// events returns the events of a step that a client with the watch's selection gets.
func (w *Watcher) events(of step) ([]watch.Event, error) {
	events := of.first
	for _, c := range of.changes {
		if !inScope(c.After.Key, w.key, w.opts.Recursive) {
			continue
		}
		had, before := w.selects(c.Before)
		has, after := w.selects(c.After)
		switch {
		case before != nil || after != nil:
			return events, apierrors.NewInternalError(fmt.Errorf("selecting %q: %w", c.After.Key, cmp.Or(before, after)))
		case had && has:
			events = append(events, watch.Event{Type: watch.Modified, Object: c.After.Object})
		case has:
			events = append(events, watch.Event{Type: watch.Added, Object: c.After.Object})
		case had:
			events = append(events, watch.Event{Type: watch.Deleted, Object: withVersion(c.Before.Object, nil, c.After.RV)})
		}
	}
	return append(events, of.last...), of.err
}

func (w *Watcher) selects(v *Version) (bool, error) {
	if v == nil || v.Object == nil {
		return false, nil
	}
	return w.opts.Predicate.Matches(v.Object)
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
		w.Asked = w.opts.ProgressNotify
	}
	s.mu.Wake()
	return ctx.Err()
}
