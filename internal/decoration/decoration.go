// SPDX-License-Identifier: Apache-2.0

// Package decoration makes and calls storage decorators and what opens the storage under
// them. Their signatures differ between the minors of Kubernetes: everything else in the
// module uses a Request.
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
	// ReverseKeyFunc returns the name and namespace for a key below ResourcePrefix. It is
	// nil before Kubernetes 1.38, and for a registry with a KeyFunc of its own that
	// declares no reverse.
	ReverseKeyFunc func(key string) (name, namespace string, err error)
	NewFunc        func() runtime.Object
	NewListFunc    func() runtime.Object
	GetAttrsFunc   storage.AttrFunc
	IndexerFuncs   storage.IndexerFuncs
	Indexers       *cache.Indexers
}

// Func makes a storage, and returns the function that closes it.
type Func func(Request) (storage.Interface, factory.DestroyFunc, error)
