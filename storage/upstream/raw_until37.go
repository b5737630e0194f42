// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package upstream

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// RawStorage is a cacher.RawStorageFunc for the Store's resource and prefix. It returns s.
func (s *Store) RawStorage(config *storagebackend.ConfigForResource, _, _ func() runtime.Object, resourcePrefix string) (storage.Interface, factory.DestroyFunc, error) {
	return s, func() {}, s.serves(config.GroupResource, resourcePrefix)
}
