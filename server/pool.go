// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/internal/shared"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// pool opens one etcd3.Backend per set of etcd servers and closes it with the last
// storage on it.
type pool struct {
	backends shared.Map[poolKey, backend]
	// open is etcd3.Open except in tests.
	open openFunc
}

type openFunc func(context.Context, etcd3.Config) (backend, error)

// backend is what the pool needs of an *etcd3.Backend.
type backend interface {
	RawStorage(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, resourcePrefix string) (storage.Interface, factory.DestroyFunc, error)
	Close() error
}

// poolKey says which resources share a backend: those with the same servers,
// credentials and way there, and the same idea of compaction, which is per server.
type poolKey struct {
	servers                   string
	certFile, keyFile, caFile string
	egress                    uintptr
	compaction                time.Duration
}

func newPool() *pool {
	return &pool{open: func(ctx context.Context, config etcd3.Config) (backend, error) {
		return etcd3.Open(ctx, config)
	}}
}

// RawStorage is a cacher.RawStorageFunc.
func (p *pool) RawStorage(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, resourcePrefix string) (storage.Interface, factory.DestroyFunc, error) {
	if config.Type != storagebackend.StorageTypeUnset && config.Type != storagebackend.StorageTypeETCD3 {
		return nil, nil, fmt.Errorf("storage backend %q of %s: only %q is known here", config.Type, config.GroupResource, storagebackend.StorageTypeETCD3)
	}
	backend, release, err := p.backends.Use(keyOf(config), func() (backend, func(), error) { return p.connect(config) })
	if err != nil {
		return nil, nil, err
	}
	raw, destroy, err := backend.RawStorage(config, newFunc, newListFunc, resourcePrefix)
	if err != nil {
		release()
		return nil, nil, err
	}
	return raw, sync.OnceFunc(func() {
		destroy()
		release()
	}), nil
}

func keyOf(config *storagebackend.ConfigForResource) poolKey {
	transport := config.Transport
	return poolKey{
		servers:    strings.Join(slices.Sorted(slices.Values(transport.ServerList)), ","),
		certFile:   transport.CertFile,
		keyFile:    transport.KeyFile,
		caFile:     transport.TrustedCAFile,
		egress:     reflect.ValueOf(transport.EgressLookup).Pointer(),
		compaction: config.CompactionInterval,
	}
}

// connect opens a backend, and returns what closes it.
func (p *pool) connect(config *storagebackend.ConfigForResource) (backend, func(), error) {
	settings, err := etcd3.ConfigFrom(config.Config)
	if err != nil {
		return nil, nil, err
	}
	settings.Prefix = "" // each resource brings its own
	opened, err := p.open(context.Background(), settings)
	if err != nil {
		return nil, nil, err
	}
	return opened, func() {
		if err := opened.Close(); err != nil {
			klog.ErrorS(err, "Closing the etcd client", "endpoints", settings.Endpoints)
		}
	}, nil
}
