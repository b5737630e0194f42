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
	"sort"
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
		State
	}
}

var (
	_ storage.Interface           = (*Store)(nil)
	_ capability.ProgressReporter = (*Store)(nil)
	_ capability.HistoryKeeper    = (*Store)(nil)
	_ capability.KeyVersioner     = (*Store)(nil)
	_ capability.VersionLister    = (*Store)(nil)
)

// State is the objects of a Store, as a tree, and the log of the changes that led to them.
// Its methods are called with the Store locked.
type State struct {
	// RV is the current resourceVersion.
	RV uint64
	// Changed is closed by Wake.
	Changed chan struct{}

	config *Config
	tree   *btree.BTree[*Version]
	// log is the changes that are kept, in order, after the first ones, which are
	// forgotten. The window is the last History of them; those before it are kept for
	// open watches that have still to send them.
	log       []Change
	first     int
	floor     uint64 // the oldest version that the log leads back to
	compacted uint64
	most      int // objects that there have been at the most
	watches   map[*Watcher]struct{}
}

// Version is one state of one object. It is never written after it was made.
type Version struct {
	Key    string
	RV     uint64
	Object runtime.Object // nil: the object was deleted
}

// Change is one write. Before is nil if there was no object.
type Change struct{ Before, After *Version }

// Write is one change of one object, which then belongs to the store. Object is nil for
// a deletion; a deletion of nothing is none.
type Write struct {
	Key    string
	Object runtime.Object
}

// degree of the tree: nodes of up to 63 objects.
const degree = 32

// New returns an empty store.
func New(config Config) *Store {
	s := &Store{config: config}
	s.mu.State = State{
		RV: config.Start, Changed: make(chan struct{}),
		config: &s.config, floor: config.Start,
		tree:    btree.New(degree, func(a, b *Version) bool { return a.Key < b.Key }),
		watches: map[*Watcher]struct{}{},
	}
	return s
}

// Guarded returns the lock of s and the state under it, for the owner and for tests.
func Guarded(s *Store) (*sync.Mutex, *State) { return &s.mu.Mutex, &s.mu.State }

// Wake resumes the watches that wait for changes.
func (st *State) Wake() {
	close(st.Changed)
	st.Changed = make(chan struct{})
}

// Get returns the current version of the object at a key, nil if there is none.
func (st *State) Get(key string) *Version {
	v, _ := st.tree.Get(&Version{Key: key})
	return v
}

// Commit makes writes in their order, together at one resourceVersion or each at one of
// its own, and returns the last one, nil if there was nothing to do.
func (st *State) Commit(together bool, writes ...Write) (after *Version) {
	rv := st.RV + 1
	for _, w := range writes {
		made := &Version{Key: w.Key, RV: rv, Object: w.Object}
		var before *Version
		if w.Object != nil {
			setVersion(w.Object, rv)
			before, _ = st.tree.ReplaceOrInsert(made)
		} else if before, _ = st.tree.Delete(made); before == nil {
			continue
		}
		st.log = append(st.log, Change{before, made})
		st.RV, after = rv, made
		if !together {
			rv++
		}
	}
	if st.config.History > 0 {
		st.moveOn()
	}
	st.Wake()
	return after
}

// moveOn moves the window on, and forgets what only watches need that are too far behind:
// these end. A watch has room for two changes of every object, so that one that reads is
// never ended by a replacement of the whole state.
func (st *State) moveOn() {
	st.most = max(st.most, st.tree.Len())
	needed := st.first + len(st.log) - st.config.History
	least := needed - st.config.Behind - 2*st.most
	for w := range st.watches {
		if w.next >= max(st.first, least) {
			needed = min(needed, w.next)
		}
	}
	st.forget(needed)
}

// forget drops the changes before the one with the number n.
func (st *State) forget(n int) {
	if drop := n - st.first; drop > 0 {
		st.floor = max(st.floor, st.log[drop-1].After.RV)
		clear(st.log[:drop])
		st.log, st.first = st.log[drop:], n
	}
}

// Touch moves the resourceVersion on without a change, and returns it.
func (st *State) Touch() uint64 {
	st.RV++
	st.Wake()
	return st.RV
}

// Compact forgets all versions below rv. Watches that still need one end with 410.
func (st *State) Compact(rv uint64) {
	st.compacted, st.floor = max(st.compacted, rv), max(st.floor, rv)
	st.forget(st.after(rv))
	st.Wake()
}

// after returns the number of the first change after rv.
func (st *State) after(rv uint64) int {
	return st.first + sort.Search(len(st.log), func(i int) bool { return st.log[i].After.RV > rv })
}

// at returns the objects as of rv, which is not below the floor.
func (st *State) at(rv uint64) *btree.BTree[*Version] {
	view := st.tree.Clone()
	for i := len(st.log) - 1; i >= 0 && st.log[i].After.RV > rv; i-- {
		if c := st.log[i]; c.Before == nil {
			view.Delete(c.After)
		} else {
			view.ReplaceOrInsert(c.Before)
		}
	}
	return view
}

// Restore goes back to the state at rv, like a backup that is restored: later changes are
// gone, and watches that have had some of them have no position.
func (st *State) Restore(rv uint64) {
	st.tree, st.RV, st.log = st.at(rv), rv, st.log[:st.after(rv)-st.first]
	st.Wake()
}
