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

// MalformedVersion returns the error for a GET with a malformed resourceVersion: a 400.
func MalformedVersion(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// CheckWatch returns nil: before Kubernetes 1.38, storage need not reject any options.
func CheckWatch(storage.ListOptions) error { return nil }

// OmitsPrevious returns false: before Kubernetes 1.38, no storage can omit previous states.
func OmitsPrevious() bool { return false }

// ForCache returns s.
func ForCache(s storage.Interface) storage.Interface { return s }

// LastState returns the object of a DELETED event, i.e. last.
func LastState(_ storage.ListOptions, last runtime.Object, _ func() runtime.Object) runtime.Object {
	return last
}

// SetShardInfo does nothing: before Kubernetes 1.38, lists of metadata have no shard.
func SetShardInfo(*metav1.PartialObjectMetadataList, metav1.ListInterface) {}

// TokenKey returns the key to which a LIST's continue token is relative: the caller's, which may
// lack the trailing slash.
func TokenKey(key, _ string) string { return key }
