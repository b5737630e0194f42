// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ahead is a watch of the storage that was opened before a list was begun. To
// list and then to watch from the list's resourceVersion fails if the storage
// has compacted that meanwhile, and fails for ever if the list takes longer
// than the storage's compaction interval. A watch that is open is not affected
// by a compaction.
type ahead struct {
	watch *Watch
	from  uint64
}

// watchAhead opens the watch for the list that begins now, if the storage returns its
// version; otherwise the cache watches from the list's version. Events wait in the
// storage's client until the list is complete.
func (s *Source) watchAhead(ctx context.Context) {
	s.dropAhead()
	rv, ok := s.version(ctx)
	if !ok || rv == 0 {
		return
	}
	w, err := s.open(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatUint(rv, 10)})
	if err != nil {
		return
	}
	w.busy.Store(true) // its events are not read yet
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ahead = &ahead{watch: w, from: rv}
}

// takeAhead returns the watch that was opened before the list at rv, or nil.
func (s *Source) takeAhead(rv string) *Watch {
	s.mu.Lock()
	ahead := s.mu.ahead
	s.mu.Unlock()
	listed, err := strconv.ParseUint(rv, 10, 64)
	if ahead == nil || err != nil || listed < ahead.from {
		s.dropAhead()
		return nil
	}
	s.mu.Lock()
	s.mu.ahead = nil
	s.mu.Unlock()
	ahead.watch.busy.Store(false)
	return ahead.watch
}

// dropAhead ends a watch that was opened for a list that came to nothing.
func (s *Source) dropAhead() {
	s.mu.Lock()
	ahead := s.mu.ahead
	s.mu.ahead = nil
	s.mu.Unlock()
	if ahead == nil {
		return
	}
	s.current.CompareAndSwap(ahead.watch, nil)
	s.discard(ahead.watch)
}

// Close ends a watch that a failed list has left open. It is called once the tasks are
// closed.
func (s *Source) Close() { s.dropAhead() }
