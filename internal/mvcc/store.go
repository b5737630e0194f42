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
	"fmt"
	"sort"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/third_party/forked/golang/btree"
)

// Config describes a Store. Prefix and NewFunc are required.
type Config struct {
	// Prefix is what all keys begin with; it ends with "/".
	Prefix string
	// NewFunc returns an empty object.
	NewFunc func() runtime.Object
	// Attributes must not fail for an object that is written. nil: all are taken.
	Attributes storage.AttrFunc
	// Indexers are the indexes that Select reads. Like Attributes, they must not fail.
	Indexers cache.Indexers
	// Start is the resourceVersion of the empty store, above 0.
	Start uint64
	// History is the number of changes that are kept for watches and lists of earlier
	// versions. 0: all of them, and a watch from a version to come waits for it, both
	// as in etcd.
	History int
	// Behind is how many more changes than History and two for each object an open
	// watch may fall behind by before it ends with 410, if History is not 0.
	Behind int
}

// Store is a storage.Interface in memory. All methods are safe for concurrent use.
type Store struct {
	config Config

	// writer serializes writes, and is held while a write compares and commits.
	// Readers don't wait for it. mu is taken under it, never the other way round.
	writer sync.Mutex
	mu     struct {
		sync.Mutex
		State
	}
}

// State is the objects of a Store, as a tree, and the log of the changes that led to them.
// It is used with the Store locked.
type State struct {
	// RV is the current resourceVersion.
	RV uint64
	// Changed is closed by Wake.
	Changed chan struct{}
	// Tree has the current versions.
	Tree *btree.BTree[*Version]
	// Log is the changes that are kept, in order, after the first ones, which are
	// forgotten. The window is the last History of them; those before it are kept for
	// open watches that have still to send them.
	Log   []Change
	first int
	// Floor is the oldest version that Log leads back to.
	Floor uint64
	// Watches are open.
	Watches map[*Watcher]Fault

	index  cache.ThreadSafeStore // of versions, by Config.Indexers; nil without them
	config *Config
	most   int // objects that there have been at the most
}

// Version is one state of one object. It is never written after it was committed.
type Version struct {
	Key    string
	RV     uint64
	Object runtime.Object // nil: the object was deleted
	leased bool           // it will be deleted, unless another one takes its place
}

// Change is one write. Before is nil if there was no object.
type Change struct{ Before, After *Version }

// degree of the tree: nodes of up to 63 objects.
const degree = 32

// New returns an empty store.
func New(config Config) *Store {
	s := &Store{config: config}
	s.mu.State = State{
		RV: config.Start, Floor: config.Start, Changed: make(chan struct{}),
		Tree:    btree.New(degree, func(a, b *Version) bool { return a.Key < b.Key }),
		Watches: map[*Watcher]Fault{}, config: &s.config,
	}
	if len(config.Indexers) > 0 {
		indexers := cache.Indexers{}
		for name, index := range config.Indexers {
			indexers[name] = func(v any) ([]string, error) { return index(v.(*Version).Object) }
		}
		s.mu.index = cache.NewThreadSafeStore(indexers, cache.Indices{})
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
	v, _ := st.Tree.Get(&Version{Key: key})
	return v
}

// Commit makes writes in their order, at resourceVersions that are step apart, and
// returns the last one, nil if there was nothing to do. Their objects then belong to the
// store. A deletion of nothing is no write.
func (st *State) Commit(step uint64, writes ...Version) (last *Version) {
	rv := st.RV + 1
	for _, w := range writes {
		w.RV = rv
		var before *Version
		if w.Object != nil {
			setVersion(w.Object, rv)
			before, _ = st.Tree.ReplaceOrInsert(&w)
		} else if before, _ = st.Tree.Delete(&w); before == nil {
			continue
		}
		if st.index != nil && w.Object != nil {
			st.index.Update(w.Key, &w)
		} else if st.index != nil {
			st.index.Delete(w.Key)
		}
		st.Log = append(st.Log, Change{before, &w})
		st.RV, last, rv = rv, &w, rv+step
	}
	if st.config.History > 0 {
		st.moveOn()
	}
	st.Wake()
	return last
}

// moveOn moves the window on, and forgets what only watches need that are too far behind:
// these end. A watch has room for two changes of every object, so that one that reads is
// never ended by a replacement of the whole state.
func (st *State) moveOn() {
	st.most = max(st.most, st.Tree.Len())
	needed := st.first + len(st.Log) - st.config.History
	least := needed - st.config.Behind - 2*st.most
	for w := range st.Watches {
		if w.next >= max(st.first, least) {
			needed = min(needed, w.next)
		}
	}
	st.forget(needed)
}

// forget drops the changes before the one with the number n.
func (st *State) forget(n int) {
	if drop := n - st.first; drop > 0 {
		st.Floor = max(st.Floor, st.Log[drop-1].After.RV)
		clear(st.Log[:drop])
		st.Log, st.first = st.Log[drop:], n
	}
}

// Forget drops all versions below rv. Watches that still need one end with 410.
func (st *State) Forget(rv uint64) {
	st.Floor = max(st.Floor, rv)
	st.forget(st.after(rv))
}

// after returns the number of the first change after rv.
func (st *State) after(rv uint64) int {
	return st.first + sort.Search(len(st.Log), func(i int) bool { return st.Log[i].After.RV > rv })
}

// At returns the objects as of exactly rv.
func (st *State) At(rv uint64) (*btree.BTree[*Version], error) {
	switch {
	case rv > st.RV:
		return nil, storage.NewTooLargeResourceVersionError(rv, st.RV, 0)
	case rv < st.Floor:
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("The resourceVersion for the provided list is too old: %d, the oldest one is %d", rv, st.Floor))
	}
	view := st.Tree.Clone()
	for i := len(st.Log) - 1; i >= 0 && st.Log[i].After.RV > rv; i-- {
		if c := st.Log[i]; c.Before == nil {
			view.Delete(c.After)
		} else {
			view.ReplaceOrInsert(c.Before)
		}
	}
	return view, nil
}
