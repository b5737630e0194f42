// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package upstream

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// DeleteOnce implements storage.Interface with one DELETE, preconditioned on the original's UID and
// resourceVersion.
func (s *Store) DeleteOnce(ctx context.Context, key string, original *storage.ObjState, out runtime.Object) error {
	target, err := s.object(key, false)
	if err != nil {
		return err
	}
	before := original.Obj.DeepCopyObject()
	if err := versioner.UpdateObject(before, uint64(original.Rev)); err != nil {
		return err
	}
	deleted, err := s.delete(ctx, target, before)
	if err != nil {
		return s.conflict(ctx, key, err)
	}
	return assign(out, deleted)
}

// UpdateOnce implements storage.Interface with one PUT at the original's resourceVersion, or one
// POST without an original. If nothing changes, it sends a GET instead.
func (s *Store) UpdateOnce(ctx context.Context, key string, original *storage.ObjState, object runtime.Object, ttl uint64,
	out runtime.Object, ignoreNotFound bool) (*storage.ObjState, error) {
	target, err := s.object(key, false)
	if err != nil {
		return nil, err
	}
	if original.Rev == 0 {
		err := s.Create(ctx, key, object, out, ttl)
		return original, s.conflict(ctx, key, err)
	}
	if ttl != 0 {
		return nil, fmt.Errorf("writing %q with a time to live of %d s: the upstream's API has none", key, ttl)
	}
	after, before := object.DeepCopyObject(), original.Obj.DeepCopyObject()
	if err := errors.Join(versioner.UpdateObject(after, uint64(original.Rev)), versioner.UpdateObject(before, uint64(original.Rev))); err != nil {
		return nil, err
	}
	if !equality.Semantic.DeepEqual(before, after) {
		return original, s.conflict(ctx, key, s.write(ctx, key, "PUT", target, after, out))
	}
	current := s.config.NewFunc()
	if err := s.Get(ctx, key, storage.GetOptions{IgnoreNotFound: ignoreNotFound}, current); err != nil {
		return nil, err
	}
	rv, err := versioner.ObjectResourceVersion(current)
	if err != nil {
		return nil, err
	}
	state := &storage.ObjState{
		Obj: current, Meta: &storage.ResponseMeta{ResourceVersion: rv}, Rev: int64(rv), Current: true, FromStorage: true,
	}
	if rv != uint64(original.Rev) {
		return state, storage.NewResourceVersionConflictsError(key, int64(rv))
	}
	return state, assign(out, current)
}

// conflict returns the storage error for a failed attempt. Its current resourceVersion is 0,
// because the upstream does not report it, so callers read the object again.
func (s *Store) conflict(ctx context.Context, key string, err error) error {
	err = s.failure(ctx, key, err)
	if apierrors.IsConflict(err) || storage.IsNotFound(err) || storage.IsExist(err) {
		return storage.NewResourceVersionConflictsError(key, 0)
	}
	return err
}
