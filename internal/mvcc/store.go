// SPDX-License-Identifier: Apache-2.0

// Package mvcc is an in-memory storage.Interface for one resource, with a window of earlier
// versions. Packages storage/memory and internal/memstore build on it. A Store's methods are for
// API servers, the package's functions for the owner of the objects.
//
// Committed versions are immutable. Watches and lists return them without copying, so that a cache
// shares them; readers must not modify them.
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
	// Prefix is the prefix of all keys, ending with "/".
	Prefix string
	// NewFunc returns an empty object.
	NewFunc func() runtime.Object
	// Attributes rejects an object by an error. Nil accepts all.
	Attributes storage.AttrFunc
	// Indexers are the indexes for Select. They reject objects like Attributes.
	Indexers cache.Indexers
	// Start is the resourceVersion of the empty store, above 0.
	Start uint64
	// History is the number of changes kept for watches and lists of earlier versions. 0 keeps all,
	// and lets watches wait for a future version, as in etcd.
	History int
	// Behind is how many changes beyond History, and two per object, a watch may lag before it ends
	// with 410. It has no effect if History is 0.
	Behind int
}

// Store is an in-memory storage.Interface, safe for concurrent use.
type Store struct {
	config Config

	// writer serializes comparing and committing. Readers don't wait for it. Lock order: writer,
	// mu.
	writer sync.Mutex
	mu     struct {
		sync.Mutex
		State
	}
}

// State is a Store's objects and the log of changes. Guarded by the Store's lock.
type State struct {
	// RV is the current resourceVersion.
	RV uint64
	// Changed is closed by Wake.
	Changed chan struct{}
	// Tree holds the current versions.
	Tree *btree.BTree[*Version]
	// Log holds the kept changes in order, after first dropped ones. Its last History changes are
	// the window, others are kept for lagging watches.
	Log   []Change
	first int
	// Floor is the oldest readable version.
	Floor uint64
	// Watches are the open watches.
	Watches map[*Watcher]Fault

	index  cache.ThreadSafeStore // versions by Config.Indexers; nil without any
	config *Config
	most   int // maximum number of objects so far
}

// Version is an immutable version of an object.
type Version struct {
	Key    string
	RV     uint64
	Object runtime.Object // nil for a deletion
	leased bool           // expires unless replaced
}

// Change is one write. Before is nil for a creation.
type Change struct{ Before, After *Version }

// degree limits the tree's nodes to 63 objects.
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

// Guarded returns the Store's lock and state, for the owner and for tests.
func Guarded(s *Store) (*sync.Mutex, *State) { return &s.mu.Mutex, &s.mu.State }

// Wake resumes waiting watches.
func (st *State) Wake() {
	close(st.Changed)
	st.Changed = make(chan struct{})
}

// Get returns the current version at a key, or nil.
func (st *State) Get(key string) *Version {
	v, _ := st.Tree.Get(&Version{Key: key})
	return v
}

// Commit makes writes in order, at resourceVersions step apart, and returns the last one, or nil
// without any. It skips deletions of missing objects. The store then owns the objects.
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

// moveOn advances the window, and ends watches too far behind. A watch may lag by two changes per
// object, so replacing all objects never ends a watch that keeps reading.
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

// forget drops the changes before number n.
func (st *State) forget(n int) {
	if drop := n - st.first; drop > 0 {
		st.Floor = max(st.Floor, st.Log[drop-1].After.RV)
		clear(st.Log[:drop])
		st.Log, st.first = st.Log[drop:], n
	}
}

// Forget drops all versions below rv. Watches that need one end with 410.
func (st *State) Forget(rv uint64) {
	st.Floor = max(st.Floor, rv)
	st.forget(st.after(rv))
}

// after returns the number of the first change after rv.
func (st *State) after(rv uint64) int {
	return st.first + sort.Search(len(st.Log), func(i int) bool { return st.Log[i].After.RV > rv })
}

// At returns the objects at exactly rv.
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
