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

	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// pool opens one etcd3.Backend per set of etcd servers and closes it with the last
// storage on it.
//
// pool.mu and shared.mu are never held together.
type pool struct {
	mu struct {
		sync.Mutex
		backends map[poolKey]*shared
	}
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

// shared is a backend and the number of storages on it.
type shared struct {
	refs int // guarded by pool.mu
	mu   struct {
		sync.Mutex // held while opening, so that one opens and the others wait
		backend    backend
		err        error
	}
}

func newPool() *pool {
	p := &pool{open: func(ctx context.Context, config etcd3.Config) (backend, error) {
		return etcd3.Open(ctx, config)
	}}
	p.mu.backends = map[poolKey]*shared{}
	return p
}

// RawStorage is a cacher.RawStorageFunc.
func (p *pool) RawStorage(config *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, resourcePrefix string) (storage.Interface, factory.DestroyFunc, error) {
	if config.Type != storagebackend.StorageTypeUnset && config.Type != storagebackend.StorageTypeETCD3 {
		return nil, nil, fmt.Errorf("storage backend %q of %s: only %q is known here", config.Type, config.GroupResource, storagebackend.StorageTypeETCD3)
	}
	key := keyOf(config)
	shared := p.acquire(key)
	backend, err := shared.connect(p.open, config)
	if err != nil {
		p.forget(key, shared)
		p.release(key, shared)
		return nil, nil, err
	}
	raw, destroy, err := backend.RawStorage(config, newFunc, newListFunc, resourcePrefix)
	if err != nil {
		p.release(key, shared)
		return nil, nil, err
	}
	var once sync.Once
	return raw, func() {
		once.Do(func() {
			destroy()
			p.release(key, shared)
		})
	}, nil
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

// acquire counts one more storage on the backend of key, which may not be open yet.
func (p *pool) acquire(key poolKey) *shared {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.mu.backends[key]
	if !ok {
		s = &shared{}
		p.mu.backends[key] = s
	}
	s.refs++
	return s
}

// release counts one storage less, and closes the backend after the last.
func (p *pool) release(key poolKey, s *shared) {
	p.mu.Lock()
	s.refs--
	last := s.refs == 0
	if last && p.mu.backends[key] == s {
		delete(p.mu.backends, key)
	}
	p.mu.Unlock()
	if !last {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.backend != nil {
		if err := s.mu.backend.Close(); err != nil {
			klog.ErrorS(err, "Closing the etcd client", "endpoints", key.servers)
		}
		s.mu.backend = nil
	}
}

// connect returns the open backend of s. Those who wait for one attempt share its
// outcome.
func (s *shared) connect(open openFunc, config *storagebackend.ConfigForResource) (backend, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.backend != nil || s.mu.err != nil {
		return s.mu.backend, s.mu.err
	}
	settings, err := etcd3.ConfigFrom(config.Config)
	if err != nil {
		s.mu.err = err
		return nil, err
	}
	settings.Prefix = "" // each resource brings its own
	opened, err := open(context.Background(), settings)
	if err != nil {
		s.mu.err = err
		return nil, err
	}
	s.mu.backend = opened
	return opened, nil
}

// forget makes the next acquire of key begin anew, after s could not be opened.
func (p *pool) forget(key poolKey, s *shared) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.backends[key] == s {
		delete(p.mu.backends, key)
	}
}
