// SPDX-License-Identifier: Apache-2.0

// Package decoration creates and calls storage decorators and raw storage functions. It hides the
// differences between their signatures in the minors of Kubernetes behind a Request.
package decoration

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Request holds the arguments of a generic.StorageDecorator.
type Request struct {
	Config         *storagebackend.ConfigForResource
	ResourcePrefix string
	KeyFunc        func(runtime.Object) (string, error)
	// ReverseKeyFunc returns the name and namespace for a key below ResourcePrefix. It is nil
	// before Kubernetes 1.38, and for registries with their own KeyFunc and no declared reverse.
	ReverseKeyFunc func(key string) (name, namespace string, err error)
	NewFunc        func() runtime.Object
	NewListFunc    func() runtime.Object
	GetAttrsFunc   storage.AttrFunc
	IndexerFuncs   storage.IndexerFuncs
	Indexers       *cache.Indexers
}

// Func opens a storage and returns a function that closes it.
type Func func(Request) (storage.Interface, factory.DestroyFunc, error)
