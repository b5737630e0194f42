// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package minors

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// MalformedVersion returns the error for a GET with a malformed resourceVersion: err, a 422.
func MalformedVersion(err error) error { return err }

// CheckWatch returns an error for options that storage must reject: without previous objects, it
// can't detect that an object left a selection.
func CheckWatch(opts storage.ListOptions) error {
	if opts.WatchWithoutPrevKV && !opts.Predicate.Empty() {
		return apierrors.NewInternalError(errors.New("watchWithoutPrevKV requires an empty predicate"))
	}
	return nil
}

// OmitsPrevious reports whether caches watch storage without previous states. DELETED events then
// only contain a name, namespace and resourceVersion.
func OmitsPrevious() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.WatchFromStorageWithoutPrevKV)
}

// ForCache returns the storage under a cache. Its watches omit previous states, unless the storage
// rejects this because it can't name deleted objects.
func ForCache(s storage.Interface) storage.Interface { return forCache{s} }

type forCache struct{ storage.Interface }

// Watch implements storage.Interface.
func (s forCache) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	opts.WatchWithoutPrevKV = OmitsPrevious()
	w, err := s.Interface.Watch(ctx, key, opts)
	if opts.WatchWithoutPrevKV && apierrors.IsInternalError(err) {
		opts.WatchWithoutPrevKV = false
		return s.Interface.Watch(ctx, key, opts)
	}
	return w, err
}

// LastState returns the object of a DELETED event: last, or only its name and namespace if the
// watch omits previous states.
func LastState(opts storage.ListOptions, last runtime.Object, newFunc func() runtime.Object) runtime.Object {
	if !opts.WatchWithoutPrevKV {
		return last
	}
	named := newFunc()
	if from, err := meta.Accessor(last); err == nil {
		if to, err := meta.Accessor(named); err == nil {
			to.SetName(from.GetName())
			to.SetNamespace(from.GetNamespace())
		}
	}
	return named
}

// SetShardInfo copies the shard of a list to the list of its metadata.
func SetShardInfo(list *metav1.PartialObjectMetadataList, from metav1.ListInterface) {
	if sharded, ok := from.(metav1.ShardedListInterface); ok {
		list.ShardInfo = sharded.GetShardInfo()
	}
}

// TokenKey returns the key to which a LIST's continue token is relative: the prepared one, with a
// trailing slash.
func TokenKey(_, prepared string) string { return prepared }
