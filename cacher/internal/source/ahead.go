// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"
)

// watchAhead opens a watch at the storage's current version before a list. If there is no current
// version, the Reflector watches from the list's version. Events wait in the storage's client until
// the list is complete.
//
// A watch opened after the list fails if storage has compacted the list's version, as it always has
// if a list takes longer than the compaction interval.
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

func (s *Source) dropAhead() {
	if w := s.ahead.Swap(nil); w != nil {
		s.drop(w)
	}
}

func (s *Source) drop(w *Watch) {
	s.current.CompareAndSwap(w, nil)
	s.discard(w)
}

// Close ends the watch of a failed list. Config.Tasks must be closed before.
func (s *Source) Close() { s.dropAhead() }
