// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/mvcc"
)

// Store is an in-memory storage with faults. It is safe for concurrent use.
type Store struct {
	*core // without faults
	// Decodes makes watches and lists return their own objects. Set it before using the store.
	Decodes bool
	// History is the result of KeepsHistory. Set it before using the store.
	History bool

	mu        *sync.Mutex // the core's
	state     *mvcc.State // guarded by mu
	compacted uint64      // guarded by mu
	faults    struct {    // guarded by mu
		held bool
		// unfinished is the revision of which watches only get the first parts events, or 0.
		unfinished uint64
		parts      int
		// silent is true if no bookmark marks the end of a revision.
		silent   bool
		requests map[string]int
		fail     map[string]error
		gates    map[string]chan struct{}
		// corrupt is the error for reading changes after corruptAfter.
		corrupt      *apierrors.StatusError
		corruptAfter uint64
		// ending is the error that ends new watches, hang how they hang.
		ending *apierrors.StatusError
		hang   *hanging
	}
}

type core = mvcc.Store

// New returns an empty store at resourceVersion 1, for keys under prefix, which must end with "/".
func New(prefix string, newObject func() runtime.Object) *Store {
	s := &Store{core: mvcc.New(mvcc.Config{Prefix: prefix, NewFunc: newObject, Start: 1})}
	s.mu, s.state = mvcc.Guarded(s.core)
	s.faults.requests = make(map[string]int)
	s.faults.fail = make(map[string]error)
	s.faults.gates = make(map[string]chan struct{})
	return s
}

// Write is one write of a transaction. Object is nil for a deletion.
type Write = mvcc.Version

// Txn makes several writes at one resourceVersion and returns it. Watches receive them in order.
// The store then owns the objects.
func (s *Store) Txn(writes ...Write) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Commit(0, writes...)
	return s.state.RV
}

// Put writes an object and returns its resourceVersion. The store then owns the object.
func (s *Store) Put(key string, object runtime.Object) uint64 {
	return s.Txn(Write{Key: key, Object: object})
}

// Remove deletes a key and returns the deletion's resourceVersion, or 0 without an object.
func (s *Store) Remove(key string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if deletion := s.state.Commit(0, Write{Key: key}); deletion != nil {
		return deletion.RV
	}
	return 0
}

// Touch increments and returns the resourceVersion, like a write to another resource.
func (s *Store) Touch() (rv uint64) {
	s.order(func() {
		s.state.RV++
		rv = s.state.RV
	})
	return rv
}

// Compact drops all versions below rv. Watches that need one end with "expired".
func (s *Store) Compact(rv uint64) {
	s.order(func() {
		s.compacted = max(s.compacted, rv)
		s.state.Forget(rv)
	})
}

// CompactRevision implements storage.Interface.
func (s *Store) CompactRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.compacted)
}

// KeysAt calls visit for the keys under prefix at rv, in order, with the resourceVersion of each.
func (s *Store) KeysAt(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error {
	s.mu.Lock()
	view, err := s.state.At(rv)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	view.AscendGreaterOrEqual(&mvcc.Version{Key: prefix}, func(v *mvcc.Version) bool {
		if strings.HasPrefix(v.Key, prefix) {
			err = cmp.Or(ctx.Err(), visit(v.Key, v.RV))
		}
		return err == nil
	})
	return err
}

// Objects returns the current objects by key.
func (s *Store) Objects() map[string]runtime.Object {
	objects := map[string]runtime.Object{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Tree.Ascend(func(v *mvcc.Version) bool {
		objects[v.Key] = v.Object
		return true
	})
	return objects
}

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.request(ctx, "create"); err != nil {
		return err
	}
	return s.core.Create(ctx, key, obj, out, ttl)
}

// Delete implements storage.Interface.
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions) error {
	if err := s.request(ctx, "delete"); err != nil {
		return err
	}
	return s.core.Delete(ctx, key, out, nil, func(ctx context.Context, current runtime.Object) error {
		return s.attempt(suggestion, current, func(state runtime.Object) error {
			if err := preconditions.Check(key, state); err != nil {
				return err
			}
			return validate(ctx, state)
		})
	}, nil, opts)
}

// GuaranteedUpdate implements storage.Interface.
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	if err := s.request(ctx, "update"); err != nil {
		return err
	}
	return s.core.GuaranteedUpdate(ctx, key, out, ignoreNotFound, nil, func(current runtime.Object, _ storage.ResponseMeta) (after runtime.Object, ttl *uint64, err error) {
		err = s.attempt(suggestion, current, func(state runtime.Object) (err error) {
			if err = preconditions.Check(key, state); err == nil {
				after, ttl, err = update(state, storage.ResponseMeta{ResourceVersion: s.versionOf(state)})
			}
			return err
		})
		return after, ttl, err
	}, nil)
}

// attempt writes on top of the suggestion, and on the current object if that fails or their
// resourceVersions differ. Like etcd's storage, it trusts a suggestion at the current version.
func (s *Store) attempt(suggestion, current runtime.Object, write func(state runtime.Object) error) error {
	if suggestion != nil && write(suggestion.DeepCopyObject()) == nil && s.versionOf(suggestion) == s.versionOf(current) {
		return nil
	}
	return write(current)
}

func (s *Store) versionOf(object runtime.Object) uint64 {
	rv, err := s.Versioner().ObjectResourceVersion(object)
	if err != nil {
		panic(fmt.Sprintf("memstore: %v", err))
	}
	return rv
}

// Get implements storage.Interface.
func (s *Store) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if err := s.request(ctx, "get"); err != nil {
		return err
	}
	return s.core.Get(ctx, key, opts, out)
}

// GetList implements storage.Interface.
func (s *Store) GetList(ctx context.Context, key string, opts storage.ListOptions, out runtime.Object) error {
	if err := s.request(ctx, "list"); err != nil {
		return err
	}
	if err := s.core.GetList(ctx, key, opts, out); err != nil {
		return err
	}
	if s.Decodes {
		reflect.ValueOf(out).Elem().Set(reflect.ValueOf(out.DeepCopyObject()).Elem())
	}
	list, err := meta.ListAccessor(out)
	if err != nil {
		return err
	}
	rv, err := s.Versioner().ParseResourceVersion(list.GetResourceVersion())
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(err, s.undecodableLocked(rv))
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	if err := s.request(ctx, "version"); err != nil {
		return 0, err
	}
	return s.core.GetCurrentResourceVersion(ctx)
}

// KeyVersions implements capability.KeyVersioner. It reads no objects, so Corrupt does not affect
// it.
func (s *Store) KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error) {
	if err := s.request(ctx, "keyversions"); err != nil {
		return nil, 0, err
	}
	return s.core.KeyVersions(ctx, keys)
}

// KeepsHistory implements capability.HistoryKeeper.
func (s *Store) KeepsHistory() bool { return s.History }

// RequestWatchProgress implements storage.Interface.
func (s *Store) RequestWatchProgress(ctx context.Context) error {
	if err := s.request(ctx, "progress"); err != nil {
		return err
	}
	return s.core.RequestWatchProgress(ctx)
}
