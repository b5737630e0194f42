// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"
)

// watchAhead opens a watch before a list, at the storage's current version. If storage
// does not return one, the Reflector watches from the list's version. Events wait in the
// storage's client until the list is complete.
//
// To list and then to watch from the list's resourceVersion fails if storage has compacted
// that version, and always fails if a list takes longer than the compaction interval. A
// compaction does not affect an open watch.
func (s *Source) watchAhead(ctx context.Context) {
	s.dropAhead()
	rv, ok := s.Version(ctx)
	if !ok || rv == 0 {
		return
	}
	w, err := s.open(ctx, strconv.FormatUint(rv, 10))
	if err != nil {
		if ctx.Err() == nil {
			s.config.Owner.WatchFailed(err, false)
		}
		return
	}
	w.after = rv
	w.busy.Store(true) // the stream does not read it yet
	s.ahead.Store(w)
}

// takeAhead returns the watch opened before the list at rv, or nil.
func (s *Source) takeAhead(rv string) *Watch {
	w := s.ahead.Swap(nil)
	if w == nil {
		return nil
	}
	listed, err := strconv.ParseUint(rv, 10, 64)
	if err != nil || listed < w.after {
		s.drop(w)
		return nil
	}
	w.busy.Store(false)
	return w
}

// dropAhead ends a watch whose list failed.
func (s *Source) dropAhead() {
	if w := s.ahead.Swap(nil); w != nil {
		s.drop(w)
	}
}

func (s *Source) drop(w *Watch) {
	s.current.CompareAndSwap(w, nil)
	s.discard(w)
}

// Close ends a watch that a failed list left open. Config.Tasks must be closed before.
func (s *Source) Close() { s.dropAhead() }
