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

	"github.com/kube-watchcache/watchcache/internal/minors"
)

const (
	watchBuffer = 100  // capacity of a watch's channel
	batchSize   = 1000 // default for Watcher.Most
)

// Watcher is one watch, with a position in the Store's log. Its goroutine ends with its context, on
// Stop, or after an ERROR event, and closes the channel. Nothing waits for it.
type Watcher struct {
	store  *Store
	cancel context.CancelFunc
	key    string
	opts   storage.ListOptions
	result chan watch.Event

	// Guarded by the Store's lock.

	// RV is the version up to which all changes were taken.
	RV uint64
	// Asked is true if a bookmark is requested.
	Asked bool
	// Most is the maximum number of changes per step.
	Most int
	next int // number of the next change; -1 if it was dropped
}

// Fault is the methods of a Watcher that tests replace.
type Fault interface {
	// Take returns the watch's next step. Caller must hold the Store's lock.
	Take() Step
	// Sent returns the event to send in place of event.
	Sent(event watch.Event) watch.Event
	// End ends the watch and closes its channel. It is called once.
	End()
}

// Step is a batch of changes, followed by other events.
type Step struct {
	Changes []Change
	Others  []watch.Event
	Err     error           // ends the watch, with an ERROR event if it is a status
	Changed <-chan struct{} // closed when there may be more; nil if there is more already
}

// ResultChan implements watch.Interface.
func (w *Watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *Watcher) Stop() { w.cancel() }

// Watch implements storage.Interface. A watch gets a 410 if its version was dropped or is in the
// future, or if it lags more than Config.Behind.
func (s *Store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return Watch(ctx, s, key, opts, func(w *Watcher) Fault { return w })
}

// Watch is Store.Watch with faults, called with the Store locked.
func Watch(ctx context.Context, s *Store, key string, opts storage.ListOptions, faults func(*Watcher) Fault) (watch.Interface, error) {
	key, err := storage.PrepareKey(s.config.Prefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	if err := minors.CheckWatch(opts); err != nil {
		return nil, err
	}
	rv, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if rv == 1 {
		rv = s.config.Start // the empty store, as in etcd; no clock starts another process at 1
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{store: s, cancel: cancel, key: key, opts: opts, result: make(chan watch.Event, watchBuffer), RV: rv, Most: batchSize}
	withState := ptr.Deref(opts.SendInitialEvents, rv == 0)
	first := Step{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if withState || rv == 0 {
		w.RV = s.mu.RV
	}
	w.next = s.mu.after(w.RV)
	switch {
	case rv > s.mu.RV && s.config.History > 0, rv > 0 && rv < s.mu.Floor && !withState:
		w.next = -1 // another process's version, or too old
	case withState:
		first = w.initial()
	}
	fault := faults(w)
	s.mu.Watches[w] = fault
	go w.run(ctx, first, fault)
	return w, nil
}

// Skip drops all pending changes. Caller must hold the Store's lock.
func (w *Watcher) Skip() { w.RV, w.next = w.store.mu.RV, w.store.mu.after(w.store.mu.RV) }

// initial returns the current objects, followed by the final bookmark if requested.
func (w *Watcher) initial() (first Step) {
	for v := range scan(w.store.mu.Tree, w.key, w.opts.Recursive, "") {
		first.Changes = append(first.Changes, Change{After: v})
	}
	if w.opts.SendInitialEvents != nil && w.opts.Predicate.AllowWatchBookmarks {
		end := w.Bookmark(w.RV)
		first.Others, first.Err = []watch.Event{end}, storage.AnnotateInitialEventsEndBookmark(end.Object)
	}
	return first
}

func (w *Watcher) run(ctx context.Context, next Step, fault Fault) {
	defer fault.End()
	for ctx.Err() == nil {
		events, err := w.events(next)
		if status, ok := err.(apierrors.APIStatus); ok {
			failure := status.Status()
			events = append(events, watch.Event{Type: watch.Error, Object: &failure})
		}
		for _, event := range events {
			select {
			case w.result <- fault.Sent(event):
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
		if next.Changed != nil {
			flowcontrol.WatchInitialized(ctx)
			select {
			case <-next.Changed:
			case <-ctx.Done():
			}
		}
		w.store.mu.Lock()
		next = fault.Take()
		w.store.mu.Unlock()
	}
}

// End implements Fault.
func (w *Watcher) End() {
	w.cancel()
	w.store.mu.Lock()
	delete(w.store.mu.Watches, w)
	w.store.mu.Unlock()
	close(w.result)
}

// Sent implements Fault.
func (w *Watcher) Sent(event watch.Event) watch.Event { return event }

// Take implements Fault.
func (w *Watcher) Take() (next Step) {
	pending, st := w.Pending(), &w.store.mu.State
	if w.next < 0 {
		return Step{Err: apierrors.NewResourceExpired(fmt.Sprintf("the watch is at a resourceVersion of another process, or too old: the store has %d to %d", st.Floor, st.RV))}
	}
	n, through, taken := min(w.Most, len(pending)), st.RV, w.RV
	next.Changes = slices.Clone(pending[:n])
	w.next += n
	if n > 0 {
		taken = pending[n-1].After.RV
	}
	if n < len(pending) {
		through = pending[n].After.RV - 1
	} else {
		next.Changed = st.Changed
	}
	switch {
	case through < taken: // more changes at this version follow, or it is a future one
	case w.Asked && n == len(pending):
		w.Asked, next.Others = false, []watch.Event{w.Bookmark(through)}
	case w.opts.ProgressNotify && n > 0:
		next.Others = []watch.Event{w.Bookmark(taken)}
	}
	w.RV = max(w.RV, through)
	return next
}

// Pending returns the changes not taken yet, or nil if dropped. Caller must hold the Store's lock.
func (w *Watcher) Pending() []Change {
	st := &w.store.mu.State
	if w.next < st.first || w.next > st.first+len(st.Log) { // dropped, or undone by a test
		w.next = -1
		return nil
	}
	w.next = max(w.next, st.after(w.RV))
	return st.Log[w.next-st.first:]
}

// events returns the selected events of a step.
func (w *Watcher) events(of Step) (events []watch.Event, err error) {
	for _, c := range of.Changes {
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
			events = append(events, watch.Event{Type: watch.Deleted, Object: withVersion(minors.LastState(w.opts, c.Before.Object, w.store.config.NewFunc), nil, c.After.RV)})
		}
	}
	return append(events, of.Others...), of.Err
}

func (w *Watcher) selects(v *Version) (bool, error) {
	if v == nil || v.Object == nil {
		return false, nil
	}
	return w.opts.Predicate.Matches(v.Object)
}

// Bookmark returns a bookmark at rv.
func (w *Watcher) Bookmark(rv uint64) watch.Event {
	return watch.Event{Type: watch.Bookmark, Object: withVersion(w.store.config.NewFunc(), nil, rv)}
}

// RequestWatchProgress implements storage.Interface.
func (s *Store) RequestWatchProgress(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.mu.Watches {
		w.Asked = w.opts.ProgressNotify
	}
	s.mu.Wake()
	return ctx.Err()
}
