// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Store is the storage. All methods are safe for concurrent use.
type Store struct {
	// Decodes: each watch and list brings objects of its own, as those of a storage
	// do that decodes what it has read. Set before the store is used.
	Decodes bool
	// History: the store says that it keeps its history, as etcd does. Set before the
	// store is used.
	History bool

	prefix    string
	versioner storage.APIObjectVersioner
	newObject func() runtime.Object

	mu struct {
		sync.Mutex
		rv        uint64
		objects   map[string]runtime.Object
		log       []change // all changes after compacted, oldest first
		compacted uint64
		watches   map[*storageWatch]struct{}
		changed   chan struct{} // closed at the next change or order
		held      bool
		// unfinished is the revision of which watches get the first parts
		// events only, 0 if none.
		unfinished uint64
		parts      int
		// silent: watches are not told where a revision ends.
		silent   bool
		requests map[string]int
		fail     map[string]error
		gates    map[string]chan struct{}
		// corrupt is what changes after corruptAfter can't be read for.
		corrupt      *apierrors.StatusError
		corruptAfter uint64
		// ending is what watches end with that are opened now, hang how they
		// hang.
		ending *apierrors.StatusError
		hang   *hanging
	}
}

// change is one write. before and after are nil where there was nothing.
type change struct {
	rv            uint64
	key           string
	before, after runtime.Object
}

var _ storage.Interface = (*Store)(nil)

// New returns an empty store at resourceVersion 1 for keys under prefix, which
// ends with "/".
func New(prefix string, newObject func() runtime.Object) *Store {
	s := &Store{prefix: prefix, newObject: newObject}
	s.mu.rv = 1
	s.mu.objects = make(map[string]runtime.Object)
	s.mu.watches = make(map[*storageWatch]struct{})
	s.mu.changed = make(chan struct{})
	s.mu.requests = make(map[string]int)
	s.mu.fail = make(map[string]error)
	s.mu.gates = make(map[string]chan struct{})
	return s
}

// Put writes the object, which then belongs to the store, and returns its
// resourceVersion.
func (s *Store) Put(key string, object runtime.Object) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putLocked(key, object)
}

func (s *Store) putLocked(key string, object runtime.Object) uint64 {
	rv := s.mu.rv + 1
	if err := s.versioner.UpdateObject(object, rv); err != nil {
		panic(fmt.Sprintf("memstore: %q: %v", key, err))
	}
	s.writeLocked(change{rv: rv, key: key, before: s.mu.objects[key], after: object})
	return rv
}

// Remove deletes the key and returns the resourceVersion of the deletion, 0 if
// there was no such key.
func (s *Store) Remove(key string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.mu.objects[key]
	if before == nil {
		return 0
	}
	rv := s.mu.rv + 1
	s.writeLocked(change{rv: rv, key: key, before: before})
	return rv
}

// Write is one of the writes of a transaction. Object is nil for a deletion.
type Write struct {
	Key    string
	Object runtime.Object
}

// Txn makes several writes at one resourceVersion and returns it. Their events
// come in the order of the writes. The objects belong to the store; a key that
// is deleted must exist.
func (s *Store) Txn(writes ...Write) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	rv := s.mu.rv + 1
	for _, w := range writes {
		if w.Object != nil {
			if err := s.versioner.UpdateObject(w.Object, rv); err != nil {
				panic(fmt.Sprintf("memstore: %q: %v", w.Key, err))
			}
		}
		s.writeLocked(change{rv: rv, key: w.Key, before: s.mu.objects[w.Key], after: w.Object})
	}
	return rv
}

// Touch moves the resourceVersion on without a change, as a write to another
// resource of the same storage does, and returns it.
func (s *Store) Touch() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rv++
	s.changedLocked()
	return s.mu.rv
}

func (s *Store) writeLocked(c change) {
	s.mu.rv = c.rv
	if c.after == nil {
		delete(s.mu.objects, c.key)
	} else {
		s.mu.objects[c.key] = c.after
	}
	s.mu.log = append(s.mu.log, c)
	s.changedLocked()
}

func (s *Store) changedLocked() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return s.versioner }

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, _ uint64) error {
	if err := s.request(ctx, "create"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.objects[key] != nil {
		return storage.NewKeyExistsError(key, 0)
	}
	object := obj.DeepCopyObject()
	s.putLocked(key, object)
	return assign(out, object)
}

// Delete implements storage.Interface.
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, _ storage.DeleteOptions) error {
	if err := s.request(ctx, "delete"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tryLocked(key, suggestion, func(before runtime.Object) (commit func() error, err error) {
		if before == nil {
			return nil, storage.NewKeyNotFoundError(key, 0)
		}
		if err := preconditions.Check(key, before); err != nil {
			return nil, err
		}
		if err := validate(ctx, before); err != nil {
			return nil, err
		}
		return func() error {
			rv := s.mu.rv + 1
			// The history has the state that was there: a suggestion of the same version
			// may be of a history that is gone.
			s.writeLocked(change{rv: rv, key: key, before: s.mu.objects[key]})
			return assign(out, s.at(before, rv))
		}, nil
	})
}

// GuaranteedUpdate implements storage.Interface.
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	if err := s.request(ctx, "update"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tryLocked(key, suggestion, func(before runtime.Object) (commit func() error, err error) {
		if before == nil {
			if !ignoreNotFound {
				return nil, storage.NewKeyNotFoundError(key, 0)
			}
			before = s.newObject()
		} else if err := preconditions.Check(key, before); err != nil {
			return nil, err
		}
		rv, err := s.versioner.ObjectResourceVersion(before)
		if err != nil {
			return nil, err
		}
		after, _, err := update(before.DeepCopyObject(), storage.ResponseMeta{ResourceVersion: rv})
		if err != nil {
			return nil, err
		}
		return func() error {
			s.putLocked(key, after.DeepCopyObject())
			return assign(out, s.mu.objects[key])
		}, nil
	})
}

// tryLocked makes a write of the state that is suggested, and of the current one if
// that fails or if the two have different resourceVersions. As in etcd's storage,
// only the resourceVersions are compared: a suggestion that has the current version
// is taken for the current state.
func (s *Store) tryLocked(key string, suggestion runtime.Object, write func(before runtime.Object) (commit func() error, err error)) error {
	current := s.mu.objects[key]
	if suggestion != nil {
		if commit, err := write(suggestion); err == nil && s.versionOf(suggestion) == s.versionOf(current) {
			return commit()
		}
	}
	commit, err := write(current)
	if err != nil {
		return err
	}
	return commit()
}

// versionOf returns the resourceVersion of an object, 0 for nil.
func (s *Store) versionOf(object runtime.Object) uint64 {
	if object == nil {
		return 0
	}
	rv, err := s.versioner.ObjectResourceVersion(object)
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
	key, err := storage.PrepareKey(s.prefix, key, false)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.notOlderThanLocked(opts.ResourceVersion); err != nil {
		return err
	}
	object := s.mu.objects[key]
	if object == nil {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(key, int64(s.mu.rv))
	}
	return assign(out, object)
}

// notOlderThanLocked fails for a version that the store has not reached.
func (s *Store) notOlderThanLocked(resourceVersion string) error {
	least, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if least > s.mu.rv {
		return storage.NewTooLargeResourceVersionError(least, s.mu.rv, 0)
	}
	return nil
}

// Stats implements storage.Interface.
func (s *Store) Stats(context.Context) (storage.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return storage.Stats{ObjectCount: int64(len(s.mu.objects))}, nil
}

// ReadinessCheck implements storage.Interface.
func (s *Store) ReadinessCheck() error { return nil }

// GetCurrentResourceVersion implements storage.Interface.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	if err := s.request(ctx, "version"); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.rv, nil
}

// EnableResourceSizeEstimation implements storage.Interface.
func (s *Store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("memstore: keys is nil")
	}
	return nil
}

// CompactRevision implements storage.Interface.
func (s *Store) CompactRevision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.mu.compacted)
}

// Compact forgets all versions below rv. Watches that still need one end with
// "expired".
func (s *Store) Compact(rv uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.compacted = max(s.mu.compacted, rv)
	n := 0
	for n < len(s.mu.log) && s.mu.log[n].rv <= rv {
		n++
	}
	s.mu.log = slices.Clone(s.mu.log[n:])
	s.changedLocked()
}

// stateLocked returns the objects at rv, which must not be compacted.
func (s *Store) stateLocked(rv uint64) map[string]runtime.Object {
	state := maps.Clone(s.mu.objects)
	for _, c := range slices.Backward(s.mu.log) {
		if c.rv <= rv {
			break
		}
		if c.before == nil {
			delete(state, c.key)
		} else {
			state[c.key] = c.before
		}
	}
	return state
}

// keysOf returns the keys of state in scope, sorted.
func keysOf(state map[string]runtime.Object, key string, recursive bool, from string) []string {
	var keys []string
	for k := range state {
		if (k == key || (recursive && strings.HasPrefix(k, key))) && k >= from {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// at returns a copy of the object that carries rv.
func (s *Store) at(object runtime.Object, rv uint64) runtime.Object {
	object = object.DeepCopyObject()
	if err := s.versioner.UpdateObject(object, rv); err != nil {
		panic(fmt.Sprintf("memstore: %v", err))
	}
	return object
}

// event returns what a watch over everything is told of a change.
func (s *Store) event(c change) watch.Event {
	switch {
	case c.after == nil:
		return watch.Event{Type: watch.Deleted, Object: s.at(c.before, c.rv)}
	case c.before == nil:
		return watch.Event{Type: watch.Added, Object: c.after}
	}
	return watch.Event{Type: watch.Modified, Object: c.after}
}
