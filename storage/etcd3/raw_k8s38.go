// SPDX-License-Identifier: Apache-2.0

//go:build k8s38

package etcd3

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
)

// RawStorage is Storage for an API server, with the signature of generic.NewRawStorage plus a
// resource prefix, for the cacher's WithRawStorage. See raw_until37.go for its use of cfg.
func (b *Backend) RawStorage(cfg *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, reverseKeyFunc storage.ReverseKeyFunc, resourcePrefix string) (storage.Interface, factory.DestroyFunc, error) {
	return b.rawStorage(cfg, ResourceConfig{ResourcePrefix: resourcePrefix, NewFunc: newFunc, NewListFunc: newListFunc}, rawOptions{reverseKeyFunc})
}

// rawOptions are a resource's settings outside of its ResourceConfig.
type rawOptions struct {
	reverseKeyFunc storage.ReverseKeyFunc
}

// rawStorage is the storage of k8s.io/apiserver, whose type with Close is not exported.
type rawStorage interface {
	storage.Interface
	Close()
}

func (b *Backend) newRaw(c *ResourceConfig, options rawOptions, prefix string, transformer value.Transformer, decoder apietcd3.Decoder, versioner storage.Versioner) (rawStorage, error) {
	return apietcd3.New(b.client, b.compactor, watchedCodec{c.Codec}, c.NewFunc, c.NewListFunc, options.reverseKeyFunc, prefix, c.ResourcePrefix,
		c.GroupResource, transformer, c.LeaseManagerConfig, decoder, versioner)
}
