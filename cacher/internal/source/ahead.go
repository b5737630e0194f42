// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watchAhead opens a watch before a list is begun, if the storage returns its version;
// otherwise the cache watches from the list's version. Events wait in the storage's
// client until the list is complete.
//
// To list and then to watch from the list's resourceVersion fails if the storage has
// compacted that meanwhile, and fails for ever if the list takes longer than the
// storage's compaction interval. A watch that is open is not affected by a compaction.
func (s *Source) watchAhead(ctx context.Context) {
	s.dropAhead()
	rv, ok := s.Version(ctx)
	if !ok || rv == 0 {
		return
	}
	w, err := s.open(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(rv, 10)})
	if err != nil {
		return
	}
	w.after = rv
	w.busy.Store(true) // its events are not read yet
	s.ahead.Store(w)
}

// takeAhead returns the watch that was opened before the list at rv, or nil.
func (s *Source) takeAhead(rv string) *Watch {
	w := s.ahead.Swap(nil)
	if w == nil {
		return nil
	}
	if listed, err := strconv.ParseUint(rv, 10, 64); err != nil || listed < w.after {
		s.drop(w)
		return nil
	}
	w.busy.Store(false)
	return w
}

// dropAhead ends a watch that was opened for a list that came to nothing.
func (s *Source) dropAhead() {
	if w := s.ahead.Swap(nil); w != nil {
		s.drop(w)
	}
}

func (s *Source) drop(w *Watch) {
	s.current.CompareAndSwap(w, nil)
	s.discard(w)
}

// Close ends a watch that a failed list has left open. It is called once the tasks are
// closed.
func (s *Source) Close() { s.dropAhead() }
