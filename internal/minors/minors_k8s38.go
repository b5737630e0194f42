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

// MalformedVersion returns the error for a GET whose resourceVersion can't be parsed, which
// is err: 422.
func MalformedVersion(err error) error { return err }

// CheckWatch returns the error for the options of a watch that storage must refuse: without
// the previous object, storage can't see an object leave a selection.
func CheckWatch(opts storage.ListOptions) error {
	if opts.WatchWithoutPrevKV && !opts.Predicate.Empty() {
		return apierrors.NewInternalError(errors.New("watchWithoutPrevKV requires an empty predicate"))
	}
	return nil
}

// OmitsPrevious reports whether caches watch their storage without the states before
// changes. The object of a DELETED event then has a name, a namespace and a
// resourceVersion only.
func OmitsPrevious() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.WatchFromStorageWithoutPrevKV)
}

// ForCache returns the storage under a cache: it omits states before changes, unless it
// refuses that because it can't name a deleted object.
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

// LastState returns the object of a DELETED event: the last state, or what is left of it if
// the watch is to omit states before changes.
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

// SetShardInfo sets which shard a list of metadata has, from the list that it is made of.
func SetShardInfo(list *metav1.PartialObjectMetadataList, from metav1.ListInterface) {
	if sharded, ok := from.(metav1.ShardedListInterface); ok {
		list.ShardInfo = sharded.GetShardInfo()
	}
}

// TokenKey returns the key that a continue token is relative to: of those of a LIST, the
// prepared one, which ends with a slash.
func TokenKey(_, prepared string) string { return prepared }
