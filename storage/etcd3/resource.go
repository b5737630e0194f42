// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/storage"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/kube-watchcache/watchcache/internal/endpoints"
)

// ResourceConfig describes one resource. Transformer and LeaseManagerConfig are optional.
type ResourceConfig struct {
	// GroupResource names the resource in errors, metrics and traces.
	GroupResource schema.GroupResource

	// ResourcePrefix is the resource's part of the keys: "/fleet.example.com/devices". A key in
	// etcd begins with Config.Prefix, followed by ResourcePrefix; others are refused. A trailing
	// slash also refuses those of a resource whose name begins with this one's.
	ResourcePrefix string

	// Codec encodes to the stored version, and decodes to the version of NewFunc's objects.
	Codec runtime.Codec

	// NewFunc and NewListFunc return a new object and a new list.
	NewFunc, NewListFunc func() runtime.Object

	// Transformer transforms the stored bytes, e.g. encrypts them. Nil stores them unchanged, and
	// refuses to read encrypted ones.
	Transformer value.Transformer

	// LeaseManagerConfig configures how objects with a time to live share leases. Zero means
	// k8s.io/apiserver's defaults.
	LeaseManagerConfig apietcd3.LeaseManagerConfig
}

// Validate returns an error of one line that lists every invalid field by name and value.
func (c ResourceConfig) Validate() error {
	var errs []error
	if c.GroupResource.Resource == "" {
		errs = append(errs, fmt.Errorf("GroupResource: %q names no resource", c.GroupResource.String()))
	}
	if trimmed := strings.TrimSuffix(c.ResourcePrefix, "/"); !strings.HasPrefix(trimmed, "/") || path.Clean(trimmed) != trimmed {
		errs = append(errs, fmt.Errorf(`ResourcePrefix: %q is not a path like "/group/resource"`, c.ResourcePrefix))
	}
	given := func(field string, is bool) {
		if !is {
			errs = append(errs, fmt.Errorf("%s: must not be nil", field))
		}
	}
	given("Codec", c.Codec != nil)
	given("NewFunc", c.NewFunc != nil)
	given("NewListFunc", c.NewListFunc != nil)
	if n := c.LeaseManagerConfig.ReuseDurationSeconds; n < 0 {
		errs = append(errs, fmt.Errorf("LeaseManagerConfig.ReuseDurationSeconds: %d: must not be negative", n))
	}
	if n := c.LeaseManagerConfig.MaxObjectCount; n < 0 {
		errs = append(errs, fmt.Errorf("LeaseManagerConfig.MaxObjectCount: %d: must not be negative", n))
	}
	if len(errs) > 0 {
		return fmt.Errorf("etcd3: %s: %w", c.GroupResource, utilerrors.NewAggregate(errs))
	}
	return nil
}

// Storage returns a store for one resource. Beyond storage.Interface, it has WatchProgress() bool,
// the Backend's; Versions and KeyVersions, which read the resourceVersions of keys without their
// values; and an idempotent Close(), which ends the store's watches.
func (b *Backend) Storage(c ResourceConfig) (storage.Interface, error) {
	s, err := b.open(b.cfg.Prefix, c, rawOptions{})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (b *Backend) rawStorage(cfg *storagebackend.ConfigForResource, c ResourceConfig, options rawOptions) (storage.Interface, factory.DestroyFunc, error) {
	if cfg == nil {
		return nil, nil, errors.New("etcd3: the storage configuration is nil")
	}
	if err := b.sameEtcd(cfg); err != nil {
		return nil, nil, fmt.Errorf("etcd3: %s: %w", cfg.GroupResource, err)
	}
	c.GroupResource = cfg.GroupResource
	c.Codec = cfg.Codec
	c.Transformer = cfg.Transformer
	c.LeaseManagerConfig = cfg.LeaseManagerConfig
	s, err := b.open(cmp.Or(cfg.Prefix, b.givenPrefix), c, options)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// sameEtcd returns an error for a configuration of another database, to which we would write the
// objects by mistake.
func (b *Backend) sameEtcd(cfg *storagebackend.ConfigForResource) error {
	if cfg.Type != storagebackend.StorageTypeUnset && cfg.Type != storagebackend.StorageTypeETCD3 {
		return fmt.Errorf("Type: %q is not %q", cfg.Type, storagebackend.StorageTypeETCD3)
	}
	if err := checkPrefix(cfg.Prefix); err != nil {
		return fmt.Errorf("Prefix: %q: %w", cfg.Prefix, err)
	}
	if given := cfg.Transport.ServerList; len(given) > 0 && !endpoints.Same(given, b.cfg.Endpoints) {
		return fmt.Errorf("Transport.ServerList: %s: the backend was opened for %s", quoted(given), quoted(b.cfg.Endpoints))
	}
	return nil
}

func (b *Backend) open(prefix string, c ResourceConfig, options rawOptions) (*store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	transformer := c.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	c.LeaseManagerConfig = cmp.Or(c.LeaseManagerConfig, apietcd3.NewDefaultLeaseManagerConfig())
	versioner := storage.APIObjectVersioner{}
	decoder := apietcd3.NewDefaultDecoder(c.Codec, versioner)
	if b.unsafeDelete {
		transformer = apietcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = apietcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}

	pathPrefix := strings.TrimSuffix(path.Join("/", prefix), "/")
	watched := &watchedTransformer{Transformer: transformer, pathPrefix: pathPrefix}

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return nil, fmt.Errorf("etcd3: %s: the backend is %w", c.GroupResource, ErrClosed)
	}
	raw, err := b.newRaw(&c, options, prefix, watched, decoder, versioner)
	if err != nil {
		return nil, fmt.Errorf("etcd3: %s: %w", c.GroupResource, err)
	}
	s := &store{
		Interface: raw, backend: b, closeRaw: raw.Close, resource: c.GroupResource, number: b.mu.next, nextEndpoint: int(b.mu.next),
		pathPrefix: pathPrefix, resourcePrefix: c.ResourcePrefix, transformer: watched,
	}
	s.mu.watches = make(map[*storeWatch]struct{})
	if b.unsafeDelete {
		s.Interface = apietcd3.NewStoreWithUnsafeCorruptObjectDeletion(s.Interface, c.GroupResource)
	}
	b.mu.next++
	b.mu.stores[s] = struct{}{}
	return s, nil
}
