// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"slices"
)

// catchUpBatch is how many events AddIndex reads at a time: with fewer left, the
// writer waits until they are in the index.
const catchUpBatch = 64

// AddIndex builds another index, from a snapshot and then from the events since, and has the
// state keep it until DropIndex. Nobody waits meanwhile. Snapshots that are made afterwards
// have the index. AddIndex returns its memory, in bytes. If that is more than most, the
// error is ErrTooLarge. The error is ErrExpired if Replace was called meanwhile, or the
// window has moved on faster than the index could follow.
//
// AddIndex and DropIndex may be called on any goroutine, but one at a time.
func (s *State) AddIndex(index Index, most int64) (bytes int64, err error) {
	s.mu.Lock()
	newest := s.withTailLocked()
	s.mu.Unlock()
	tree := index.build(newest.All())
	if bytes := tree.bytes(); bytes > most {
		return bytes, fmt.Errorf("an index of %d bytes, of at most %d: %w", bytes, most, ErrTooLarge)
	}
	next, events, scratch := newest.next, make([]*Event, catchUpBatch), make([]string, 0, valuesRoom)
	follow := func(since func(Position, []*Event) (int, uint64, error)) error {
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
	s.indexLocked(append(slices.Clip(t.indexes), index), append(slices.Clip(t.byIndex), tree))
	return tree.bytes(), nil
}

// DropIndex has the state keep an index no longer. Snapshots that have it still have it.
func (s *State) DropIndex(name string) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.mu.trees
	if i := t.index(name); i >= 0 {
		s.indexLocked(slices.Delete(slices.Clone(t.indexes), i, i+1), slices.Delete(slices.Clone(t.byIndex), i, i+1))
	}
}

// indexLocked has the trees keep other indexes.
func (s *State) indexLocked(indexes []Index, trees []*btree) {
	s.mu.trees.indexes, s.mu.trees.byIndex = indexes, trees
	s.changedLocked()
	s.latest.Store(nil)
}

// IndexBytes estimates the memory of an index, in bytes, without the strings.
func (s *State) IndexBytes(name string) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i := s.mu.trees.index(name); i >= 0 {
		return s.mu.trees.byIndex[i].bytes()
	}
	return 0
}
