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

// order changes what is guarded by mu, and has all who wait look again.
func (s *Store) order(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.state.Wake()
}

// request counts a request, waits at the gate of its kind if there is one, and
// fails if that was ordered.
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

// Requests returns how many requests of each kind came: create, update,
// delete, get, list, watch, version, keyversions, progress.
func (s *Store) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.faults.requests)
}

// AwaitRequests returns once n requests of the kind have come in all.
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

// Fail makes all requests of the kind fail; nil: not any more.
func (s *Store) Fail(kind string, err error) {
	s.order(func() { s.faults.fail[kind] = err })
}

// Gate makes requests of the kind wait until open is called.
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

// Hang is how a watch hangs, as one does that an unresponsive member of a
// cluster serves: it brings no event any more, and does not end.
type Hang struct {
	// Stale: progress requests are answered, with the version that the watch had
	// reached when it began to hang, as a member does that is cut off from its
	// peers. Without it they are not answered.
	Stale bool
	// Next is how many of the watches that are opened from now on hang, too.
	Next int
	// Stubborn: the watches do not end when they are stopped either, until
	// release is called.
	Stubborn bool
}

// hanging is a Hang that was ordered. Next counts down, guarded by Store.mu.
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

// Hold keeps events back until release is called.
func (s *Store) Hold() (release func()) {
	s.order(func() { s.faults.held = true })
	return func() { s.order(func() { s.faults.held = false }) }
}

// HoldRevision makes watches bring the first events of the revision rv only,
// and nothing after them, until release is called.
func (s *Store) HoldRevision(rv uint64, events int) (release func()) {
	s.order(func() { s.faults.unfinished, s.faults.parts = rv, events })
	return func() { s.order(func() { s.faults.unfinished = 0 }) }
}

// EndRevisions sets whether a watch with ProgressNotify gets a bookmark after
// the last event of each revision, as from storage/etcd3. By default a watch does.
func (s *Store) EndRevisions(tell bool) {
	s.order(func() { s.faults.silent = !tell })
}

// BreakWatches ends all watches: with an ERROR event, or without if err is nil.
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

// EndWatches makes all watches end with err, those that are open and those that
// are opened, until release is called.
func (s *Store) EndWatches(err *apierrors.StatusError) (release func()) {
	s.order(func() {
		s.breakLocked(err)
		s.faults.ending = err
	})
	return func() { s.order(func() { s.faults.ending = nil }) }
}

// Inject sends an event of the test's making on all watches, out of order with
// those that the store has.
func (s *Store) Inject(event watch.Event) {
	s.order(func() {
		for _, w := range s.state.Watches {
			w.(*faulty).injected = append(w.(*faulty).injected, event)
		}
	})
}

// SkipEvents makes all watches miss the changes so far that they have not
// seen, as a source that skips what it has compacted does.
func (s *Store) SkipEvents() {
	s.order(func() {
		for w := range s.state.Watches {
			w.Skip()
		}
	})
}

// Restore goes back to the state at rv, as a restored backup does: history
// after it is gone, and watches end.
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

// Watches returns how many watches are open.
func (s *Store) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.state.Watches)
}

// Corrupt makes every change from now on undeliverable until release is
// called: watches end with err when they come to one, and lists fail with it.
func (s *Store) Corrupt(err *apierrors.StatusError) (release func()) {
	s.order(func() { s.faults.corruptAfter, s.faults.corrupt = s.state.RV, err })
	return func() { s.order(func() { s.faults.corrupt = nil }) }
}

// undecodableLocked fails for something that includes changes up to rv.
func (s *Store) undecodableLocked(rv uint64) error {
	if s.faults.corrupt == nil || rv <= s.faults.corruptAfter {
		return nil
	}
	return s.faults.corrupt
}
