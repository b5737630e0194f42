// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
)

// keyed is a storage, or a cacher over it, that has keys of its own. Clauses use theirs.
type keyed struct {
	storage.Interface
	key func(string) string
}

// own returns a function that translates keys of the clauses by key. Keys that none has,
// which a suite tries, stay as they are.
func own(key func(string) string) func(string) string {
	return func(k string) string {
		switch {
		case strings.HasPrefix(k, Prefix):
			return key(k)
		case k+"/" == Prefix:
			return strings.TrimSuffix(key(Prefix), "/")
		}
		return k
	}
}

// withKeys returns the storage as it is if key is nil.
func withKeys(s storage.Interface, key func(string) string) storage.Interface {
	if key == nil {
		return s
	}
	return keyed{s, own(key)}
}

// Create implements storage.Interface.
func (s keyed) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.Interface.Create(ctx, s.key(key), obj, out, ttl)
}

// Delete implements storage.Interface.
func (s keyed) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return s.Interface.Delete(ctx, s.key(key), out, preconditions, validate, cached, opts)
}

// GuaranteedUpdate implements storage.Interface.
func (s keyed) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.Interface.GuaranteedUpdate(ctx, s.key(key), out, ignoreNotFound, preconditions, update, cached)
}

// Get implements storage.Interface.
func (s keyed) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	return s.Interface.Get(ctx, s.key(key), opts, into)
}

// GetList implements storage.Interface.
func (s keyed) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	return s.Interface.GetList(ctx, s.key(key), opts, into)
}

// Watch implements storage.Interface.
func (s keyed) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(ctx, s.key(key), opts)
}

// cached is a cacher that is asked with the keys of the clauses.
type cached struct {
	storage.Interface
	cacher *cacher.Cacher
}

// written is a storage that only reads, with the writer of its data.
type written struct {
	storage.Interface
	Writer
}

// Create implements storage.Interface.
func (s written) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.Writer.Create(ctx, key, obj, out, ttl)
}

// Delete implements storage.Interface.
func (s written) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return s.Writer.Delete(ctx, key, out, preconditions, validate, cached, opts)
}

// GuaranteedUpdate implements storage.Interface.
func (s written) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return s.Writer.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
}
