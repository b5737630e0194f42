// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Get implements storage.Interface. Without a resourceVersion it is a
// consistent read, and into is then the caller's own; with one, into shares
// what is below its top level with the cache.
func (c *Cacher) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	e := c.enter()
	defer c.leave()
	return e.get(ctx, key, opts, into)
}

func (c *engine) get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	prepared, err := storage.PrepareKey(c.config.ResourcePrefix, key, false)
	if err != nil {
		return err
	}
	rv, err := c.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	target, err := conversion.EnforcePtr(into)
	if err != nil {
		return err
	}
	o := readOptions{unset: opts.ResourceVersion == "", rv: rv}
	d := decide(o, c.readState(o))
	switch d.kind {
	case readRefuse:
		c.metrics.Read("get", readRefuse.String())
		return c.readiness.refusal()
	case readDelegate:
		c.metrics.Read("get", readDelegate.String())
		return c.config.Storage.Get(ctx, key, opts, into)
	}
	if err := c.fresh(ctx, d); err != nil {
		return c.fallback("get", d, err, func() error {
			return c.config.Storage.Get(ctx, key, opts, into)
		})
	}
	c.metrics.Read("get", d.kind.String())
	element, at := c.state.Get(prepared)
	if element == nil {
		if !opts.IgnoreNotFound {
			return storage.NewKeyNotFoundError(prepared, int64(at))
		}
		return runtime.SetZeroValue(into)
	}
	return assign(target, element, d.kind == readConsistent)
}
