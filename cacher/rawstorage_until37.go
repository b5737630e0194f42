// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package cacher

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// RawStorageFunc opens the storage under a cache, as generic.NewRawStorage does.
type RawStorageFunc func(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object,
	resourcePrefix string) (storage.Interface, factory.DestroyFunc, error)
