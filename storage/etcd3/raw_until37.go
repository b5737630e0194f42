// SPDX-License-Identifier: Apache-2.0

//go:build !k8s38

package etcd3

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
)

// RawStorage is Storage for an API server, with the signature of
// generic.NewRawStorage and a resource's prefix: pass it to the cacher's
// WithRawStorage. RawStorage uses Prefix, Codec, Transformer, GroupResource and
// LeaseManagerConfig of cfg. An empty Prefix means the prefix that the Backend
// was opened with, and no prefix if it was opened with none; DefaultPrefix does
// not apply, because the prefix of an API server is empty only if somebody set
// it so. If cfg names servers or a storage type, they must be the Backend's;
// everything else, compaction included, is as the Backend was opened. The
// DestroyFunc closes the store, not the Backend.
func (b *Backend) RawStorage(cfg *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, resourcePrefix string) (storage.Interface, factory.DestroyFunc, error) {
	return b.rawStorage(cfg, ResourceConfig{ResourcePrefix: resourcePrefix, NewFunc: newFunc, NewListFunc: newListFunc}, rawOptions{})
}

// rawOptions are the settings of a resource that its ResourceConfig does not have.
type rawOptions struct{}

// rawStorage is the storage of k8s.io/apiserver with its Close, whose type is not exported.
type rawStorage interface {
	storage.Interface
	Close()
}

func (b *Backend) newRaw(c *ResourceConfig, _ rawOptions, prefix string, transformer value.Transformer, decoder apietcd3.Decoder, versioner storage.Versioner) (rawStorage, error) {
	return apietcd3.New(b.client, b.compactor, watchedCodec{c.Codec}, c.NewFunc, c.NewListFunc, prefix, c.ResourcePrefix,
		c.GroupResource, transformer, c.LeaseManagerConfig, decoder, versioner)
}
