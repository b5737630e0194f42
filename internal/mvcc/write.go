// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage"
)

var versioner storage.APIObjectVersioner

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if rv, err := versioner.ObjectResourceVersion(obj); err == nil && rv != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	return s.write(ctx, key, out, true, nil, func(state *Version) (runtime.Object, *uint64, error) {
		if state.RV != 0 {
			return nil, nil, storage.NewKeyExistsError(key, 0)
		}
		return obj, &ttl, nil
	})
}

// Delete implements storage.Interface. Using the suggestion would save no read.
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, _ storage.DeleteOptions) error {
	return s.write(ctx, key, out, false, preconditions, func(state *Version) (runtime.Object, *uint64, error) {
		return nil, nil, validate(ctx, state.Object.DeepCopyObject())
	})
}

// GuaranteedUpdate implements storage.Interface.
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, _ runtime.Object) error {
	return s.write(ctx, key, out, ignoreNotFound, preconditions, func(state *Version) (runtime.Object, *uint64, error) {
		object, ttl, err := update(state.Object.DeepCopyObject(), storage.ResponseMeta{ResourceVersion: state.RV})
		if err == nil && object == nil {
			err = errors.New("an update without an object")
		}
		return object, ttl, err
	})
}

// write retries until no other write intervenes. try runs unlocked and returns a state's
// replacement (nil deletes it) and an optional time to live in seconds.
func (s *Store) write(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions,
	try func(state *Version) (object runtime.Object, ttl *uint64, err error)) error {
	key, err := storage.PrepareKey(s.config.Prefix, key, false)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		before, rv := s.current(key)
		if before == nil && !ignoreNotFound {
			return storage.NewKeyNotFoundError(key, int64(rv))
		}
		state := cmp.Or(before, &Version{Object: s.config.NewFunc()})
		if err := preconditions.Check(key, state.Object); err != nil {
			return err
		}
		object, ttl, err := try(state)
		if err == nil && object != nil {
			object, err = s.own(key, object)
		}
		if err != nil {
			return err
		}
		written := before
		if object == nil || before == nil || !equal(object, nil, before) {
			written = s.swap(key, before, object, ttl)
		}
		switch {
		case written == nil: // another write intervened
		case object == nil:
			return assign(out, withVersion(before.Object, nil, written.RV))
		default:
			return assign(out, written.Object)
		}
	}
	return ctx.Err()
}

// swap writes an object, or deletes it if nil. It returns the new version, or nil if before is
// outdated.
func (s *Store) swap(key string, before *Version, object runtime.Object, ttl *uint64) (written *Version) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.Get(key) != before {
		return nil
	}
	written = s.mu.Commit(1, Version{Key: key, Object: object})
	if ttl != nil {
		s.lease(written, time.Duration(*ttl)*time.Second)
	}
	return written
}

// lease deletes the current version v after ttl; 0 means never. Caller must hold the Store's lock.
func (s *Store) lease(v *Version, ttl time.Duration) {
	if v == nil || ttl == 0 && !v.leased {
		return
	}
	renewed := &Version{v.Key, v.RV, v.Object, ttl > 0} // a new pointer, so that earlier timers don't match
	s.mu.Tree.ReplaceOrInsert(renewed)
	if ttl > 0 {
		time.AfterFunc(ttl, func() { s.swap(v.Key, renewed, nil, nil) }) // the timer's goroutine ends immediately
	}
}

// Apply makes the objects at the keys of wanted, in key order, equal to wanted's, each change at
// its own resourceVersion. It stores copies with a UID and creationTimestamp. If whole, it first
// deletes all other objects. An RV in wanted must be current. A single object expires after ttl,
// unless 0. On error, nothing changed.
func Apply(ctx context.Context, s *Store, wanted []Version, whole bool, ttl time.Duration) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	view := s.mu.Tree.Clone()
	s.mu.Unlock()
	var changes []Version
	if whole {
		i := 0
		for v := range scan(view, s.config.Prefix, true, "") {
			for ; i < len(wanted) && wanted[i].Key < v.Key; i++ {
			}
			if i == len(wanted) || wanted[i].Key != v.Key {
				changes = append(changes, Version{Key: v.Key})
			}
		}
	}
	scratch := s.config.NewFunc() // shared, as most objects are equal
	var leased []*Version         // unchanged objects with a lease to set or clear
	for i := range wanted {
		w := &wanted[i]
		current, exists := view.Get(w)
		current = cmp.Or(current, &Version{})
		if w.RV != 0 && w.RV != current.RV {
			return fmt.Errorf("%s has the resourceVersion \"%d\", the current one is \"%d\": %w", w.Key, w.RV, current.RV, storage.NewResourceVersionConflictsError(w.Key, int64(current.RV)))
		}
		if exists && equal(w.Object, scratch, current) {
			if ttl > 0 || current.leased {
				leased = append(leased, current)
			}
			continue
		}
		object, err := s.own(w.Key, w.Object)
		if err != nil {
			return err
		}
		inherit(object, current.Object)
		inherit(object, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uuid.NewUUID(), CreationTimestamp: metav1.Now().Rfc3339Copy()}})
		changes = append(changes, Version{Key: w.Key, Object: object})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range append(leased, s.mu.Commit(1, changes...)) {
		s.lease(v, ttl)
	}
	return nil
}

// inherit copies the UID and creationTimestamp where object has none.
func inherit(object, from runtime.Object) {
	to, _ := meta.Accessor(object) // the owner checked that it has metadata
	other, err := meta.Accessor(from)
	if err == nil && to.GetUID() == "" {
		to.SetUID(other.GetUID())
	}
	if created := to.GetCreationTimestamp(); err == nil && created.IsZero() {
		to.SetCreationTimestamp(other.GetCreationTimestamp())
	}
}

// own returns the store's copy of an object, without apiVersion and kind for Go types, as if
// decoded.
func (s *Store) own(key string, object runtime.Object) (runtime.Object, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		if err := checkJSON(u.Object); err != nil {
			return nil, fmt.Errorf("the object of %q: %w", key, err)
		}
	}
	if attributes := s.config.Attributes; attributes != nil {
		if _, _, err := attributes(object); err != nil {
			return nil, fmt.Errorf("the attributes of %q: %w", key, err)
		}
	}
	for name, index := range s.config.Indexers {
		if _, err := index(object); err != nil {
			return nil, fmt.Errorf("the index %q of %q: %w", name, key, err)
		}
	}
	object = object.DeepCopyObject()
	if _, ok := object.(runtime.Unstructured); !ok {
		asDecoded(object)
	}
	return object, versioner.PrepareObjectForStorage(object)
}

// checkJSON rejects values that JSON decoders don't produce: copying panics or encoding fails. Its
// error begins with the path.
func checkJSON(value any) error {
	switch v := value.(type) {
	case nil, string, bool, int64:
	case map[string]any:
		for name, child := range v {
			if err := checkJSON(child); err != nil {
				return fmt.Errorf(".%s%w", name, err)
			}
		}
	case []any:
		for i, child := range v {
			if err := checkJSON(child); err != nil {
				return fmt.Errorf("[%d]%w", i, err)
			}
		}
	case float64, json.Number:
		if _, err := json.Marshal(v); err != nil {
			return fmt.Errorf(" is not JSON: %w", err)
		}
	default:
		return fmt.Errorf(" is a %T: want string, bool, int64, float64, map[string]any, []any or nil", v)
	}
	return nil
}

// withVersion returns object at rv as a shallow copy, made in scratch unless that is nil or object
// is unstructured. Unstructured metadata is copied too; objects of Go types lose apiVersion and
// kind.
func withVersion(object, scratch runtime.Object, rv uint64) runtime.Object {
	if u, ok := object.(*unstructured.Unstructured); ok {
		content := maps.Clone(u.Object)
		if metadata, ok := content["metadata"].(map[string]any); ok {
			content["metadata"] = maps.Clone(metadata)
		}
		scratch = &unstructured.Unstructured{Object: content}
	} else {
		if scratch == nil {
			scratch = reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
		}
		reflect.ValueOf(scratch).Elem().Set(reflect.ValueOf(object).Elem())
		asDecoded(scratch)
	}
	setVersion(scratch, rv)
	return scratch
}

// asDecoded drops what encoding and decoding would lose from an object of a Go type.
func asDecoded(object runtime.Object) {
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetCreationTimestamp(metav1.NewTime(accessor.GetCreationTimestamp().Truncate(time.Second)))
	}
}

func setVersion(object runtime.Object, rv uint64) {
	if err := versioner.UpdateObject(object, rv); err != nil {
		panic(fmt.Sprintf("an object without metadata: %v", err)) // rejected before the write
	}
}
