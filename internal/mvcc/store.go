// SPDX-License-Identifier: Apache-2.0

// Package mvcc keeps the objects of one resource in memory, together with a window of
// their earlier versions, and is a whole storage.Interface over them. Packages
// storage/memory and internal/memstore are made of it: a Store's methods are what an API
// server may call, and the functions of this package are for the owner of the objects.
//
// A version of an object is never written again after it was committed. Watches and
// lists give out the stored objects themselves, so that a cache over a Store shares
// each of them; readers must not write to them.
package mvcc

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/kube-watchcache/watchcache/storage/capability"
)

// Config describes a Store. Prefix and NewFunc are required.
type Config struct {
	// Prefix is what all keys begin with; it ends with "/".
	Prefix string
	// NewFunc returns an empty object.
	NewFunc func() runtime.Object
	// Start is the resourceVersion of the empty store, above 0.
	Start uint64
	// History is the number of changes that are kept for watches and lists of earlier
	// versions. 0: all of them, until Compact, and a watch from a version to come
	// waits for it, both as in etcd.
	History int
	// Behind is how many more changes than History and two for each object an open
	// watch may fall behind by before it ends with 410, if History is not 0.
	Behind int
}

// Store is a storage.Interface in memory. All methods are safe for concurrent use.
type Store struct {
	config    Config
	versioner storage.APIObjectVersioner

	// writer serializes writes, and is held while a write compares and commits.
	// Readers don't wait for it. mu is taken under it, never the other way round.
	writer sync.Mutex
	mu     struct {
		sync.Mutex
		rv   uint64
		tree *btree.BTree[*version]
		// oldest precedes the changes of the window, newest is the last of them. Open
		// watches refer to the changes that they have still to send, so that the
		// window can move on without them.
		oldest, newest *change
		most           int    // objects that the store has had at the most
		compacted      uint64 // versions below it are gone
		watches        map[*Watcher]struct{}
		changed        chan struct{} // closed with the next change
	}
}

// version is one state of one object. It is never written after it was made.
type version struct {
	key    string
	rv     uint64
	object runtime.Object // nil: the object was deleted
}

// change is one write. Only next is ever written after the change was made, under
// Store.mu.
type change struct {
	n             uint64   // how many there were before
	before, after *version // before is nil if there was no object
	next          *change
}

var (
	_ storage.Interface           = (*Store)(nil)
	_ capability.ProgressReporter = (*Store)(nil)
	_ capability.HistoryKeeper    = (*Store)(nil)
	_ capability.KeyVersioner     = (*Store)(nil)
	_ capability.VersionLister    = (*Store)(nil)
)

// degree of the tree: nodes of up to 63 objects.
const degree = 32

// New returns an empty store.
func New(config Config) *Store {
	s := &Store{config: config}
	s.mu.rv = config.Start
	s.mu.tree = btree.New(degree, func(a, b *version) bool { return a.key < b.key })
	s.mu.oldest = &change{after: &version{rv: config.Start}}
	s.mu.newest = s.mu.oldest
	s.mu.watches = map[*Watcher]struct{}{}
	s.mu.changed = make(chan struct{})
	return s
}

// Write is one change of one object, which then belongs to the store. Object is nil for
// a deletion; a deletion of nothing is none.
type Write struct {
	Key    string
	Object runtime.Object
}

// commit makes writes in their order, together at one resourceVersion or each at one of
// its own, and returns the last one.
func (s *Store) commit(together bool, writes ...Write) *version {
	s.mu.Lock()
	defer s.mu.Unlock()
	rv := s.mu.rv + 1
	for _, w := range writes {
		after := &version{key: w.Key, rv: rv, object: w.Object}
		var before *version
		if w.Object == nil {
			before, _ = s.mu.tree.Delete(after)
		} else {
			setVersion(w.Object, rv)
			before, _ = s.mu.tree.ReplaceOrInsert(after)
		}
		if before == nil && w.Object == nil {
			continue
		}
		s.mu.newest.next = &change{n: s.mu.newest.n + 1, before: before, after: after}
		s.mu.newest, s.mu.rv = s.mu.newest.next, rv
		if !together {
			rv++
		}
	}
	s.moveOnLocked()
	s.wakeLocked()
	return s.mu.newest.after
}

// moveOnLocked moves the window on and ends the watches that are too far behind. A watch
// has room for two changes of every object, so that one that reads is never ended by
// a replacement of the whole state.
func (s *Store) moveOnLocked() {
	if s.config.History == 0 {
		return
	}
	for s.mu.newest.n-s.mu.oldest.n > uint64(s.config.History) {
		s.mu.oldest = s.mu.oldest.next
	}
	s.mu.most = max(s.mu.most, s.mu.tree.Len())
	for w := range s.mu.watches {
		if w.last != nil && s.mu.newest.n-w.last.n > uint64(s.config.History+s.config.Behind+2*s.mu.most) {
			w.last = nil
		}
	}
}

func (s *Store) wakeLocked() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// current returns the object at a key, nil if there is none, and the store's version.
func (s *Store) current(key string) (*version, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, _ := s.mu.tree.Get(&version{key: key})
	return v, s.mu.rv
}

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface.
func (s *Store) ReadinessCheck() error { return nil }

// WatchProgress implements capability.ProgressReporter: requests are always answered.
func (s *Store) WatchProgress() bool { return true }

// KeepsHistory implements capability.HistoryKeeper.
func (s *Store) KeepsHistory() bool { return true }

// CompactRevision implements storage.Interface. Versions that have left the window are
// not compacted in this sense: a cache over the store may keep them for longer.
func (s *Store) CompactRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.mu.compacted)
}

// Stats implements storage.Interface.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storage.Stats{ObjectCount: int64(s.mu.tree.Len())}, ctx.Err()
}

// EnableResourceSizeEstimation implements storage.Interface. Nothing is stored in bytes.
func (s *Store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("the function that returns the keys is nil")
	}
	return nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	_, rv, err := s.KeyVersions(ctx, nil)
	return rv, err
}

// KeyVersions implements capability.KeyVersioner.
func (s *Store) KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions = make([]uint64, len(keys))
	for i, key := range keys {
		if _, err := storage.PrepareKey(s.config.Prefix, key, false); err != nil {
			return nil, 0, err
		}
		if v, ok := s.mu.tree.Get(&version{key: key}); ok {
			versions[i] = v.rv
		}
	}
	return versions, s.mu.rv, ctx.Err()
}
