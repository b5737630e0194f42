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

// The upstream gives objects their UIDs, timestamps and defaults, and has its own admission.
// Preconditions are checked here, and once more by the upstream, on the same version.

// write sends an object and decodes the answer into out, which may be nil.
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

// GuaranteedUpdate implements storage.Interface. An object that does not exist is created.
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
		if err == nil || (live && (ctx.Err() != nil || !lost.again(err, before))) { // a suggestion may be old
			return err
		}
	}
}

// race is the version of the object that the last write has lost, "none" if it has not.
type race string

// again reports whether a write of an object has failed because somebody else has written it
// meanwhile. Two conflicts in a row at one version have another reason.
func (r *race) again(err error, before runtime.Object) bool {
	object, failed := meta.Accessor(before)
	if failed != nil || !(apierrors.IsConflict(err) || storage.IsExist(err)) || object.GetResourceVersion() == string(*r) {
		return false
	}
	*r = race(object.GetResourceVersion())
	return true
}

// errSuggested is how an update ends that would leave a suggestion as it is: only the object
// itself can show whether there is nothing to write.
var errSuggested = errors.New("the update changes nothing of an object that may be old")

// update tries one update of the object before; one without a version does not exist. live: it
// comes from the upstream.
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

// Delete implements storage.Interface. An object with finalizers, or with a grace period,
// exists after it; out is then the object that is being deleted.
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

// delete deletes an object in the version before, and returns its last state.
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
		return before, nil // the answer is a Status, which some resources have
	}
	return answer, nil
}

// assign copies an object to the caller's, which may be nil.
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
