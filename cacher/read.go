// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"math"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// readState is what decide needs to know of the cache for a read.
func (c *engine) readState(o readOptions) readState {
	s := readState{
		progress:      c.watchProgress(),
		consistentGet: !c.config.ConsistentGetFromStorage,
	}
	var trusted bool
	s.ready, s.stopped, trusted = c.readiness.decides()
	if !o.list {
		return s // a GET has nothing to do with earlier versions
	}
	s.rv, s.oldest, s.compacted = c.state.Reach()
	if !trusted {
		s.oldest = math.MaxUint64 // until a check of consistency passes
	}
	if compacted := c.config.Storage.CompactRevision(); compacted > 0 && uint64(compacted) > s.compacted {
		// Sooner than followStorage finds out.
		s.compacted = uint64(compacted)
		c.state.Compacted(s.compacted)
	}
	return s
}

// fresh waits until the cache is as fresh as the decision wants it.
func (c *engine) fresh(ctx context.Context, d decision) error {
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
func (c *engine) snapshot(ctx context.Context, d decision) (*watchcache.Snapshot, error) {
	if err := c.fresh(ctx, d); err != nil {
		return nil, err
	}
	if d.kind == readExact || d.kind == readContinue {
		return c.state.At(d.rv)
	}
	return c.state.Latest(), nil
}

// fallback decides what becomes of a read that the cache failed to serve, and
// counts it as what it has become. A version that has just gone is asked of
// storage, whose answer counts. A consistent read that waited in vain is too,
// as long as there are few of them; the others are told to retry. Anything
// else fails with err itself.
func (c *engine) fallback(verb string, d decision, err error, fromStorage func() error) error {
	kind := d.kind
	defer func() { c.metrics.Read(verb, kind.String()) }()
	switch {
	case errors.Is(err, errStopped):
		kind = readRefuse
		return c.readiness.refusal()
	case errors.Is(err, watchcache.ErrExpired), errors.Is(err, watchcache.ErrCompacted):
		kind = readDelegate
		return fromStorage()
	case errors.Is(err, watchcache.ErrFuture):
		// The history that had the version was replaced by a restored one.
		return storage.NewTooLargeResourceVersionError(d.rv, c.state.RV(), retryTooLarge)
	case d.kind != readConsistent || !storage.IsTooLargeResourceVersion(err):
		return err
	}
	leave := c.freshness.stale.enter()
	if leave == nil {
		kind = readRefuse
		c.metrics.StaleRead(staleRefused)
		return apierrors.NewTooManyRequests(err.Error(), retryTooLarge)
	}
	defer leave()
	kind = readDelegate
	c.metrics.StaleRead(staleFromStorage)
	return fromStorage()
}

// expiredError is what a client is told whose resourceVersion is too old.
func expiredError(err error) error {
	return apierrors.NewResourceExpired("too old resource version: " + err.Error())
}
