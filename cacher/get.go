// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// Get implements storage.Interface. Without a resourceVersion it is a
// consistent read, and into is then the caller's own; with one, into shares
// what is below its top level with the cache.
func (c *Cacher) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	key, err := storage.PrepareKey(c.config.ResourcePrefix, key, false)
	if err != nil {
		return err
	}
	rv, err := c.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return err
	}
	d := decide(readOptions{unset: opts.ResourceVersion == "", rv: rv}, c.readState())
	c.metrics.Read("get", d.kind.String())
	fromStorage := func() error { return c.config.Storage.Get(ctx, key, opts, into) }
	if d.kind == readDelegate {
		return fromStorage()
	}
	if err := c.fresh(ctx, d); err != nil {
		return c.fallback(d, err, fromStorage)
	}
	element, at := c.state.Get(key)
	if element == nil {
		if !opts.IgnoreNotFound {
			return storage.NewKeyNotFoundError(key, int64(at))
		}
		return runtime.SetZeroValue(into)
	}
	target, err := conversion.EnforcePtr(into)
	if err != nil {
		return err
	}
	target.Set(copyOf(element, d.kind == readConsistent))
	return nil
}

// copyOf returns the element's object as a value to be assigned. What is
// below its top level is shared unless it is to be private; an unstructured
// object's top level includes its metadata.
func copyOf(e *watchcache.Element, private bool) reflect.Value {
	object := e.Object
	if _, ok := object.(runtime.Unstructured); ok || private {
		object = object.DeepCopyObject()
	}
	return reflect.ValueOf(object).Elem()
}
