// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// Apply makes the objects at the keys of wanted, in their order, equal to these objects,
// each change at a resourceVersion of its own, and returns how many changes that took. The
// caller keeps the objects: copies are written. If wanted is whole, all other
// objects are deleted before. check is called with each object that must be written;
// if there is an error, nothing has changed.
func Apply(ctx context.Context, s *Store, wanted []Write, whole bool, check func(runtime.Object) error) (int, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	view, _, err := s.viewAt(0)
	if err != nil {
		return 0, err
	}
	var changes []Write
	if whole {
		rest := wanted
		for v := range scan(view, s.config.Prefix, true, "") {
			for len(rest) > 0 && rest[0].Key < v.key {
				rest = rest[1:]
			}
			if len(rest) == 0 || rest[0].Key != v.key {
				changes = append(changes, Write{Key: v.key})
			}
		}
	}
	scratch, at := s.config.NewFunc(), &version{} // one for all: most objects are equal
	for _, w := range wanted {
		at.key = w.Key
		current, exists := view.Get(at)
		switch {
		case w.Object == nil && !exists, w.Object != nil && exists && equal(w.Object, scratch, current):
			continue
		case w.Object != nil:
			if err := check(w.Object); err != nil {
				return 0, err
			}
			w.Object = own(w.Object)
		}
		changes = append(changes, w)
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
