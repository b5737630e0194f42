// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
)

// catchUpBatch is the number of events AddIndex reads at a time. With fewer events left, AddIndex
// finishes under the writer lock.
const catchUpBatch = 64

// AddIndex builds an index from a snapshot and the events since, and maintains it until DropIndex.
// Neither readers nor the writer wait for the build. Later snapshots have the index. AddIndex
// returns the memory of the index in bytes. It returns ErrTooLarge if that exceeds limit, and
// ErrExpired if Replace was called during the build, or the window moved on faster than the build
// could follow.
//
// AddIndex and DropIndex may be called from any goroutine, but not concurrently.
func (s *State) AddIndex(index Index, limit int64) (bytes int64, err error) {
	s.mu.Lock()
	newest := s.latestIncompleteLocked()
	s.mu.Unlock()
	tree := index.build(newest.All())
	if bytes := tree.bytes(); bytes > limit {
		return bytes, fmt.Errorf("an index of %d bytes exceeds the limit of %d: %w", bytes, limit, ErrTooLarge)
	}
	next := newest.next
	events := make([]*Event, catchUpBatch)
	scratch := make([]string, 0, valuesRoom)
	follow := func(since eventReader) error {
		for n := len(events); n == len(events); next += Position(n) {
			if n, _, err = since(next, events); err != nil {
				return err
			}
			for _, e := range events[:n] {
				index.move(tree, e, scratch)
			}
		}
		return nil
	}
	if err := follow(s.Since); err != nil {
		return 0, err
	}
	s.replacing.Lock()
	defer s.replacing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := follow(s.sinceLocked); err != nil {
		return 0, err
	}
	t := &s.mu.trees
	s.setIndexesLocked(append(slices.Clip(t.indexes), index), append(slices.Clip(t.byIndex), tree))
	return tree.bytes(), nil
}

// DropIndex removes an index. Existing snapshots keep it.
func (s *State) DropIndex(name string) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.mu.trees
	if i := t.index(name); i >= 0 {
		s.setIndexesLocked(slices.Delete(slices.Clone(t.indexes), i, i+1), slices.Delete(slices.Clone(t.byIndex), i, i+1))
	}
}

// setIndexesLocked replaces the indexes.
func (s *State) setIndexesLocked(indexes []Index, trees []*btree) {
	s.mu.trees.indexes = indexes
	s.mu.trees.byIndex = trees
	s.changedLocked()
	s.latest.Store(nil)
}

// IndexBytes estimates the memory of an index in bytes, without the values.
func (s *State) IndexBytes(name string) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i := s.mu.trees.index(name); i >= 0 {
		return s.mu.trees.byIndex[i].bytes()
	}
	return 0
}
