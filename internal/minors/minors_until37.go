// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package minors

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// MalformedVersion returns the error for a GET whose resourceVersion can't be parsed, which
// is err: 400.
func MalformedVersion(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// CheckWatch returns the error for the options of a watch that storage must refuse. There
// are none before Kubernetes 1.38.
func CheckWatch(storage.ListOptions) error { return nil }

// OmitsPrevious reports whether caches watch their storage without the states before
// changes, which no storage can before Kubernetes 1.38.
func OmitsPrevious() bool { return false }

// ForCache returns the storage under a cache.
func ForCache(s storage.Interface) storage.Interface { return s }

// LastState returns the object of a DELETED event, which is the last state.
func LastState(_ storage.ListOptions, last runtime.Object, _ func() runtime.Object) runtime.Object {
	return last
}

// SetShardInfo does nothing: lists of metadata do not have it before Kubernetes 1.38.
func SetShardInfo(*metav1.PartialObjectMetadataList, metav1.ListInterface) {}

// TokenKey returns the key that a continue token is relative to: of those of a LIST, the
// caller's, which may lack the slash at its end.
func TokenKey(key, _ string) string { return key }
