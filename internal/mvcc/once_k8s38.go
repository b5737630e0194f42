// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package mvcc

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// DeleteOnce implements storage.Interface. It deletes the object if its resourceVersion is still
// original.Rev.
func (s *Store) DeleteOnce(ctx context.Context, key string, original *storage.ObjState, out runtime.Object) error {
	key, err := s.prepare(ctx, key)
	if err != nil {
		return err
	}
	before, rv := s.current(key)
	if before == nil || before.RV != uint64(original.Rev) {
		return storage.NewResourceVersionConflictsError(key, int64(rv))
	}
	written := s.swap(key, before, nil, nil)
	if written == nil {
		return s.conflict(key)
	}
	return assign(out, withVersion(before.Object, nil, written.RV))
}

// UpdateOnce implements storage.Interface. It writes object if the current resourceVersion is still
// original.Rev; 0 means no object. If object equals the original, it is compared with the current
// one instead. Returned states have no Data.
func (s *Store) UpdateOnce(ctx context.Context, key string, original *storage.ObjState, object runtime.Object, ttl uint64,
	out runtime.Object, ignoreNotFound bool) (*storage.ObjState, error) {
	key, err := s.prepare(ctx, key)
	if err != nil {
		return nil, err
	}
	if object, err = s.own(key, object); err != nil {
		return nil, err
	}
	before, rv := s.current(key)
	if original.Rev != 0 && equal(object, nil, &Version{RV: uint64(original.Rev), Object: original.Obj}) {
		switch {
		case before == nil && !ignoreNotFound:
			return nil, storage.NewKeyNotFoundError(key, int64(rv))
		case before == nil:
			return s.stateOf(&Version{Object: s.config.NewFunc()}), storage.NewResourceVersionConflictsError(key, int64(rv))
		case !equal(object, nil, before):
			return s.stateOf(before), storage.NewResourceVersionConflictsError(key, int64(before.RV))
		}
		return s.stateOf(before), assign(out, before.Object)
	}
	current := uint64(0)
	if before != nil {
		current = before.RV
	}
	if current != uint64(original.Rev) {
		return nil, storage.NewResourceVersionConflictsError(key, int64(rv))
	}
	written := s.swap(key, before, object, &ttl)
	if written == nil {
		return nil, s.conflict(key)
	}
	return original, assign(out, written.Object)
}

func (s *Store) prepare(ctx context.Context, key string) (string, error) {
	key, err := storage.PrepareKey(s.config.Prefix, key, false)
	if err != nil {
		return "", err
	}
	return key, ctx.Err()
}

// conflict returns the error for a lost race.
func (s *Store) conflict(key string) error {
	_, rv := s.current(key)
	return storage.NewResourceVersionConflictsError(key, int64(rv))
}

// stateOf returns the state of a current version. Callers may modify its object.
func (s *Store) stateOf(v *Version) *storage.ObjState {
	return &storage.ObjState{
		Obj: v.Object.DeepCopyObject(), Meta: &storage.ResponseMeta{ResourceVersion: v.RV}, Rev: int64(v.RV),
		Current: true, FromStorage: true,
	}
}
