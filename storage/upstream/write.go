// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"
)

// The upstream sets UIDs, timestamps and defaults, runs its own admission, and checks preconditions
// again on the same version.

// write sends an object and decodes the response into out, which may be nil.
func (s *Store) write(ctx context.Context, key, verb string, of object, obj, out runtime.Object) error {
	if out == nil {
		out = s.config.NewFunc()
	}
	return s.failure(ctx, key, s.request(verb, of).Body(obj).Do(ctx).Into(out))
}

// Create implements storage.Interface.
func (s *Store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if ttl != 0 {
		return fmt.Errorf("writing %q with a time to live of %d s: the upstream's API has none", key, ttl)
	}
	if rv, err := versioner.ObjectResourceVersion(obj); err == nil && rv != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	of, err := s.object(key, false)
	if err != nil {
		return err
	}
	return s.write(ctx, key, http.MethodPost, object{namespace: of.namespace}, obj, out)
}

// GuaranteedUpdate implements storage.Interface. With ignoreNotFound, it creates a missing object.
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	lost := race("none")
	for live := suggestion == nil; ; live = true {
		before := suggestion
		if live {
			before = s.config.NewFunc()
			if err := s.Get(ctx, key, storage.GetOptions{IgnoreNotFound: ignoreNotFound}, before); err != nil {
				return err
			}
		}
		err := s.update(ctx, key, before, out, preconditions, update, live)
		if err == nil || (live && (ctx.Err() != nil || !lost.again(err, before))) { // the suggestion may be stale
			return err
		}
	}
}

// race is the object's version at the last lost write, or "none".
type race string

// again reports whether to retry because another writer won. A second conflict at the same version
// has another cause.
func (r *race) again(err error, before runtime.Object) bool {
	object, failed := meta.Accessor(before)
	if failed != nil || !(apierrors.IsConflict(err) || storage.IsExist(err)) || object.GetResourceVersion() == string(*r) {
		return false
	}
	*r = race(object.GetResourceVersion())
	return true
}

// errSuggested is returned if an update does not change a possibly stale suggestion, so that it
// must run on the current object.
var errSuggested = errors.New("the update changes nothing of an object that may be old")

// update makes one attempt to update before, which does not exist if it has no version. live
// reports whether before was read from the upstream.
func (s *Store) update(ctx context.Context, key string, before, out runtime.Object, preconditions *storage.Preconditions,
	update storage.UpdateFunc, live bool) error {
	of, err := s.object(key, false)
	if err != nil {
		return err
	}
	if err := preconditions.Check(key, before); err != nil {
		return err
	}
	rv, err := versioner.ObjectResourceVersion(before)
	if err != nil {
		return err
	}
	after, ttl, err := update(before.DeepCopyObject(), storage.ResponseMeta{ResourceVersion: rv})
	switch {
	case err != nil:
		return err
	case after == nil:
		return fmt.Errorf("updating %q: the update has returned no object", key)
	case rv == 0 || (ttl != nil && *ttl != 0):
		return s.Create(ctx, key, after, out, ptr.Deref(ttl, 0))
	}
	after = after.DeepCopyObject()
	if err := versioner.UpdateObject(after, rv); err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(before, after) {
		return s.write(ctx, key, http.MethodPut, of, after, out)
	}
	if !live {
		return errSuggested
	}
	return assign(out, before)
}

// Delete implements storage.Interface. Objects with finalizers or a grace period still exist
// afterwards; out is then the object being deleted.
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	of, err := s.object(key, false)
	if err != nil {
		return err
	}
	if opts.ExpectTransformOrDecodeError {
		return fmt.Errorf("deleting %q without decoding it: only the upstream itself can delete what can't be decoded", key)
	}
	for lost := race("none"); ; {
		before := s.config.NewFunc()
		if err := s.Get(ctx, key, storage.GetOptions{}, before); err != nil {
			return err
		}
		if err := preconditions.Check(key, before); err != nil {
			return err
		}
		if err := validate(ctx, before.DeepCopyObject()); err != nil {
			return err
		}
		deleted, err := s.delete(ctx, of, before)
		if err == nil {
			return assign(out, deleted)
		}
		if !lost.again(err, before) {
			return s.failure(ctx, key, err)
		}
	}
}

// delete deletes an object at before's version, and returns its last state.
func (s *Store) delete(ctx context.Context, of object, before runtime.Object) (runtime.Object, error) {
	accessor, err := meta.Accessor(before)
	if err != nil {
		return nil, err
	}
	uid, rv := accessor.GetUID(), accessor.GetResourceVersion()
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &rv},
	})
	if err != nil {
		return nil, err
	}
	answer, err := s.request(http.MethodDelete, of).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	deleted, err := meta.Accessor(answer)
	if err != nil || deleted.GetName() != accessor.GetName() || reflect.TypeOf(answer) != reflect.TypeOf(before) {
		return before, nil // some resources respond with a Status
	}
	return answer, nil
}

func assign(out, object runtime.Object) error {
	if out == nil {
		return nil
	}
	target, err := conversion.EnforcePtr(out)
	if err == nil {
		target.Set(reflect.ValueOf(object).Elem())
	}
	return err
}
