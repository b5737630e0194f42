// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/storage"
)

// KeyVersions returns the resourceVersion of the last write of each key, 0 for
// one that does not exist, and the store's own at that time. No object is
// read: Corrupt does not make it fail.
func (s *Store) KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error) {
	if err := s.request(ctx, "keyversions"); err != nil {
		return nil, 0, err
	}
	for _, key := range keys {
		if _, err := storage.PrepareKey(s.prefix, key, false); err != nil {
			return nil, 0, fmt.Errorf("memstore: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	versions = make([]uint64, len(keys))
	for i, key := range keys {
		object := s.mu.objects[key]
		if object == nil {
			continue
		}
		if versions[i], err = s.versioner.ObjectResourceVersion(object); err != nil {
			return nil, 0, fmt.Errorf("memstore: %q: %w", key, err)
		}
	}
	return versions, s.mu.rv, nil
}

// KeepsHistory reports whether a cache that starts may go back to what was written
// before.
func (s *Store) KeepsHistory() bool { return s.History }
