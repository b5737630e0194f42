// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// readState is what decide needs to know of the cache.
func (c *Cacher) readState() readState {
	s := readState{
		ready:         c.readiness.ready(),
		progress:      c.watchProgress(),
		consistentGet: !c.config.ConsistentGetFromStorage,
	}
	s.rv, s.oldest, s.compacted = c.state.Reach()
	return s
}

// fresh waits until the cache is as fresh as the decision wants it.
func (c *Cacher) fresh(ctx context.Context, d decision) error {
	rv := d.rv
	if d.kind == readConsistent {
		current, err := c.currentVersion(ctx)
		if err != nil {
			return err
		}
		rv = current
	}
	return c.freshness.wait(ctx, rv)
}

// snapshot returns what a read that was decided to be served is served from.
func (c *Cacher) snapshot(ctx context.Context, d decision) (*watchcache.Snapshot, error) {
	if err := c.fresh(ctx, d); err != nil {
		return nil, err
	}
	if d.kind == readExact {
		return c.state.At(d.rv)
	}
	return c.state.Latest(), nil
}

// fallback decides what becomes of a read that the cache failed to serve. An
// exact version that has just gone is asked of storage, whose answer counts. A
// consistent read that waited in vain is too, as long as there are few of
// them; the others are told to retry, or all of them would reach storage at
// once. Anything else fails with err itself.
func (c *Cacher) fallback(d decision, err error, fromStorage func() error) error {
	switch {
	case errors.Is(err, watchcache.ErrExpired), errors.Is(err, watchcache.ErrCompacted):
		c.metrics.Read("fallback", readDelegate.String())
		return fromStorage()
	case d.kind != readConsistent || !storage.IsTooLargeResourceVersion(err):
		return err
	}
	select {
	case c.staleReads <- struct{}{}:
		defer func() { <-c.staleReads }()
		c.metrics.Read("fallback", readDelegate.String())
		return fromStorage()
	default:
		c.metrics.Read("fallback", readRefuse.String())
		return apierrors.NewTooManyRequests(err.Error(), retryTooLarge)
	}
}

// expiredError is what a client is told whose resourceVersion is too old.
func expiredError(err error) error {
	return apierrors.NewResourceExpired("too old resource version: " + err.Error())
}
