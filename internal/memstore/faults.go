// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/internal/mvcc"
)

// order changes state guarded by mu, and wakes all waiters.
func (s *Store) order(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.state.Wake()
}

// request counts a request, waits at its kind's gate, and returns the error set by Fail.
func (s *Store) request(ctx context.Context, kind string) error {
	var gate chan struct{}
	s.order(func() {
		s.faults.requests[kind]++
		gate = s.faults.gates[kind]
	})
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.faults.fail[kind]
}

// Requests returns the number of requests by kind: create, update, delete, get, list, watch,
// version, keyversions, progress.
func (s *Store) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.faults.requests)
}

// AwaitRequests waits until there were n requests of a kind in total.
func (s *Store) AwaitRequests(ctx context.Context, kind string, n int) error {
	for {
		s.mu.Lock()
		have, changed := s.faults.requests[kind], s.state.Changed
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Fail makes all requests of a kind fail with err. Nil ends this.
func (s *Store) Fail(kind string, err error) {
	s.order(func() { s.faults.fail[kind] = err })
}

// Gate blocks requests of a kind until open is called.
func (s *Store) Gate(kind string) (open func()) {
	gate := make(chan struct{})
	s.order(func() { s.faults.gates[kind] = gate })
	return func() {
		s.order(func() {
			if s.faults.gates[kind] == gate {
				delete(s.faults.gates, kind)
				close(gate)
			}
		})
	}
}

// Hang describes a hanging watch, e.g. one served by an unresponsive etcd member. It sends no more
// events, and does not end.
type Hang struct {
	// Stale makes progress requests get a bookmark at the version where the watch began to hang, as
	// from a member separated from its peers. Otherwise they get none.
	Stale bool
	// Next is the number of future watches that also hang.
	Next int
	// Stubborn keeps stopped watches from ending until release is called.
	Stubborn bool
}

// hanging is a Hang in effect. Store.mu guards Next, which counts down.
type hanging struct {
	Hang
	released chan struct{}
}

// HangWatches makes the open watches hang until release is called.
func (s *Store) HangWatches(how Hang) (release func()) {
	hang := &hanging{Hang: how, released: make(chan struct{})}
	s.order(func() {
		for _, w := range s.state.Watches {
			w.(*faulty).hang = hang
		}
		s.faults.hang = hang
	})
	return func() {
		s.order(func() {
			for _, w := range s.state.Watches {
				w.(*faulty).hang = nil
			}
			if s.faults.hang == hang {
				s.faults.hang = nil
			}
			close(hang.released)
		})
	}
}

// Hold holds back events until release is called.
func (s *Store) Hold() (release func()) {
	s.order(func() { s.faults.held = true })
	return func() { s.order(func() { s.faults.held = false }) }
}

// HoldRevision makes watches send only the first events of revision rv, and nothing later, until
// release is called.
func (s *Store) HoldRevision(rv uint64, events int) (release func()) {
	s.order(func() { s.faults.unfinished, s.faults.parts = rv, events })
	return func() { s.order(func() { s.faults.unfinished = 0 }) }
}

// EndRevisions sets whether watches with ProgressNotify get a bookmark after each revision, as with
// storage/etcd3. The default is true.
func (s *Store) EndRevisions(tell bool) {
	s.order(func() { s.faults.silent = !tell })
}

// BreakWatches ends all watches, with an ERROR event unless err is nil.
func (s *Store) BreakWatches(err *apierrors.StatusError) {
	s.order(func() { s.breakLocked(err) })
}

func (s *Store) breakLocked(err *apierrors.StatusError) {
	for _, w := range s.state.Watches {
		if w.(*faulty).broken = io.EOF; err != nil {
			w.(*faulty).broken = err
		}
	}
}

// EndWatches ends open and future watches with err until release is called.
func (s *Store) EndWatches(err *apierrors.StatusError) (release func()) {
	s.order(func() {
		s.breakLocked(err)
		s.faults.ending = err
	})
	return func() { s.order(func() { s.faults.ending = nil }) }
}

// Inject sends an event on all watches, before pending ones.
func (s *Store) Inject(event watch.Event) {
	s.order(func() {
		for _, w := range s.state.Watches {
			w.(*faulty).injected = append(w.(*faulty).injected, event)
		}
	})
}

// SkipEvents makes all watches miss their pending changes.
func (s *Store) SkipEvents() {
	s.order(func() {
		for w := range s.state.Watches {
			w.Skip()
		}
	})
}

// Restore returns to the state at rv, like a restored backup: later history is lost, and watches
// end.
func (s *Store) Restore(rv uint64) {
	s.order(func() {
		view, err := s.state.At(rv)
		if err != nil {
			panic(fmt.Sprintf("memstore: %v", err))
		}
		s.state.Tree, s.state.RV = view, rv
		s.state.Log = slices.DeleteFunc(s.state.Log, func(c mvcc.Change) bool { return c.After.RV > rv })
		s.breakLocked(nil)
	})
}

// Watches returns the number of open watches.
func (s *Store) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.state.Watches)
}

// Corrupt makes future changes undecodable until release is called: lists and watches that reach
// one fail with err.
func (s *Store) Corrupt(err *apierrors.StatusError) (release func()) {
	s.order(func() { s.faults.corruptAfter, s.faults.corrupt = s.state.RV, err })
	return func() { s.order(func() { s.faults.corrupt = nil }) }
}

// undecodableLocked returns an error for a read that includes changes up to rv.
func (s *Store) undecodableLocked(rv uint64) error {
	if s.faults.corrupt == nil || rv <= s.faults.corruptAfter {
		return nil
	}
	return s.faults.corrupt
}
