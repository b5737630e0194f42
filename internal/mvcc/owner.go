// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// Apply makes the objects at these keys equal to those of wanted, nil for none, each
// change at a resourceVersion of its own, and returns how many changes that took. The
// caller keeps the objects: copies are written. If wanted is whole, all other
// objects are deleted, before. check is called with each object that is to be written;
// if there is an error, nothing has changed.
func Apply(ctx context.Context, s *Store, wanted map[string]runtime.Object, whole bool, check func(runtime.Object) error) (int, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	view, _, err := s.viewAt(0)
	if err != nil {
		return 0, err
	}
	var changes []Write
	if whole {
		for v := range scan(view, s.config.Prefix, true, "") {
			if _, stays := wanted[v.key]; !stays {
				changes = append(changes, Write{Key: v.key})
			}
		}
	}
	scratch := s.config.NewFunc()
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		object := wanted[key]
		current, exists := view.Get(&version{key: key})
		switch {
		case object == nil && !exists, object != nil && exists && equal(object, scratch, current):
			continue
		case object != nil:
			if err := check(object); err != nil {
				return 0, err
			}
			object = own(object)
		}
		changes = append(changes, Write{Key: key, Object: object})
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	s.commit(false, changes...)
	return len(changes), nil
}

// Advance moves the resourceVersion on without a change, and returns it.
func Advance(s *Store) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rv++
	s.wakeLocked()
	return s.mu.rv
}

// Compact forgets all versions below rv. Watches that still need one end with 410.
func Compact(s *Store, rv uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.compacted = max(s.mu.compacted, rv)
	for next := s.mu.oldest.next; next != nil && next.after.rv <= rv; next = next.next {
		s.mu.oldest = next
	}
	s.wakeLocked()
}

// Current returns the object at a key as it is stored, nil if there is none.
func Current(s *Store, key string) runtime.Object {
	if v, _ := s.current(key); v != nil {
		return v.object
	}
	return nil
}
