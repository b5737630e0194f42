// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// keyVersioner is implemented by a storage that spares a consistent GET to wait
// until the cache is as new as the whole storage. KeyVersions returns, from one
// linearizable read that transfers no values, the resourceVersion of the last
// write of each key, 0 where there is no such key, and storage's resourceVersion
// at that read.
type keyVersioner interface {
	KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error)
}

// askVersion asks storage for its version, and for the versions of keys if storage
// can tell them. An answer below the version that the cache had reached before is
// of another history: storage was restored from a backup.
func (e *engine) askVersion(ctx context.Context, keys []string) (answer fresh.Answer, err error) {
	reached, asked := e.state.RV(), e.time.Now()
	e.metrics.VersionRequest()
	if s, ok := e.config.Storage.(keyVersioner); ok && len(keys) > 0 {
		answer.Keys, answer.Current, err = s.KeyVersions(ctx, keys)
		if err == nil && len(answer.Keys) != len(keys) {
			err = fmt.Errorf("the storage of %s has told %d resourceVersions of %d keys", e.config.GroupResource, len(answer.Keys), len(keys))
		}
	} else {
		answer.Current, err = e.config.Storage.GetCurrentResourceVersion(ctx)
	}
	if err != nil {
		e.contact.failed(asked, err)
		e.versionFailed(err)
		return fresh.Answer{}, err
	}
	e.faults.version.end()
	e.contact.heard(e.time.Now())
	e.source.HasAnswered()
	if answer.Current >= reached {
		e.versions.Told(answer.Current)
		e.toldAt.Store(int64(e.time.Now()))
		return answer, nil
	}
	err = fmt.Errorf("the storage of %s is at resourceVersion %d, it was at %d before", e.config.GroupResource, answer.Current, reached)
	e.warn("restored", "The storage has gone back to an earlier version. The watch cache lists it again, and ends its watches", err,
		"none is needed if the storage was restored from a backup; otherwise look at whether it lost data")
	e.readiness.set(false)
	e.relist(metrics.RelistRestored, err)
	return fresh.Answer{}, restoredError(err)
}

// consistentElement returns the element with the key, nil if there is none, as a
// linearizable read does: the one that was there at some time after the call, and
// the resourceVersion that the cache was at.
//
// If storage tells the version v of the key, v was the key's last write at a time
// T after the call, and the element at v is what that write has left. So an
// element at v is the answer, whatever else the cache has not seen yet, and so is
// its absence if v is 0. Otherwise the cache is behind for this key, or ahead of
// T. Once the cache has reached v, it has that write and perhaps later ones, all
// of them from after T. Storage does not tell the version of a deletion; then the
// cache must reach the version that storage had at T. If storage does not tell
// the key's version at all, the cache must always do so.
func (e *engine) consistentElement(ctx context.Context, key string) (element *watchcache.Element, at uint64, err error) {
	asked := key
	if _, ok := e.config.Storage.(keyVersioner); !ok {
		asked = ""
	}
	version, err := e.versions.OfKey(ctx, asked)
	if err != nil {
		return nil, 0, err
	}
	if version.Known {
		if element, at = e.state.Get(key); writtenAt(element) == version.Key {
			return element, at, nil
		}
	}
	required := version.Key
	if version.Key == 0 {
		required = version.Current
	}
	limit := fresh.Limit{Timeout: fresh.GetTimeout(e.config.FreshnessTimeout), Since: version.Since}
	if err := e.waiting.WaitFor(ctx, required, limit); err != nil {
		return nil, 0, err
	}
	element, at = e.state.Get(key)
	if version.Known && contradicts(element, at, version.Key, version.Current) {
		err := fmt.Errorf("the cache of %s has %q at resourceVersion %d (0: not at all), its storage at %d", e.config.GroupResource, key, writtenAt(element), version.Key)
		e.suspect(err)
		return nil, 0, err
	}
	return element, at, nil
}

// writtenAt returns the element's version as storage tells it.
func writtenAt(e *watchcache.Element) uint64 {
	if e == nil {
		return 0
	}
	return e.RV
}

// contradicts reports whether the cache, which was at resourceVersion at, can't
// have the element (nil: none) if the key's last write up to current was at
// version: the cache has missed an event, or storage was restored from a backup
// and has gone on.
func contradicts(e *watchcache.Element, at, version, current uint64) bool {
	if e == nil {
		return version != 0 && at < current
	}
	return e.RV < version || (e.RV != version && e.RV <= current)
}
