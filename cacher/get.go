// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"math/rand/v2"
	"reflect"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/internal/minors"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Get implements storage.Interface. A consistent GET returns a private copy; otherwise everything
// below the top level of into is shared with the cache.
func (e *engine) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	prepared, err := storage.PrepareKey(e.config.ResourcePrefix, key, false)
	if err != nil {
		return err
	}
	rv, err := e.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return minors.MalformedVersion(err)
	}
	target, err := conversion.EnforcePtr(into)
	if err != nil {
		return err
	}
	o := &readOptions{unset: opts.ResourceVersion == "", rv: rv, fromStorage: e.config.ConsistentGetFromStorage}
	var seen observation
	// Observe GETs that may wait or have a trace, and a sample of others.
	if o.unset || o.rv > 0 || rand.Uint32()%timedOf == 0 || trace.SpanFromContext(ctx).IsRecording() {
		e.observe(&seen)
	}
	answered, err := e.answerGet(ctx, o, prepared, storedGet{key, opts, into}, target, &seen)
	if seen.began != 0 {
		e.observed(ctx, &seen, o, answered, err)
	}
	return err
}

func (e *engine) answerGet(ctx context.Context, o *readOptions, key string, get storedGet, target reflect.Value, seen *observation) (metrics.Decision, error) {
	d, why := e.route(o)
	if !d.served() {
		e.observe(seen)
		return e.getElsewhere(ctx, o, d, why, get)
	}
	element, at, err := e.element(ctx, key, d)
	if err != nil {
		e.observe(seen)
		d, why = e.reroute(ctx, o, d, err)
		return e.getElsewhere(ctx, o, d, why, get)
	}
	if d.rv > 0 || d.kind == readConsistent {
		e.gotReady(seen) // others did not wait
	}
	e.metrics.Read(metrics.VerbGet, d.kind)
	seen.evaluated = 1
	if element == nil {
		if !get.opts.IgnoreNotFound {
			return d.kind, e.notFoundError(key, at)
		}
		return d.kind, runtime.SetZeroValue(get.into)
	}
	seen.returned = 1
	return d.kind, copyObject(target, element, d.kind == readConsistent)
}

// element returns the element with the key, or nil, as fresh as d requires, and the cache's
// resourceVersion.
func (e *engine) element(ctx context.Context, key string, d decision) (element *watchcache.Element, at uint64, err error) {
	if d.kind == readConsistent || (d.rv > 0 && d.rv > e.waiting.At()) {
		var cancel context.CancelFunc
		ctx, cancel = freshness.BeforeDeadline(ctx)
		defer cancel()
	}
	if d.kind == readConsistent {
		return e.consistentElement(ctx, key)
	}
	if d.rv > 0 {
		err = e.waiting.WaitFor(ctx, d.rv, freshness.Limit{Timeout: freshness.GetTimeout(e.config.FreshnessTimeout)})
	}
	element, at = e.state.Get(key)
	return element, at, err
}

// getElsewhere answers a GET that the cache does not serve. After a wait, it fails if storage has
// not reached the version.
func (e *engine) getElsewhere(ctx context.Context, o *readOptions, d decision, why error, get storedGet) (metrics.Decision, error) {
	return e.elsewhere(ctx, o, d, why, func(ctx context.Context) error {
		if d.afterWait && !o.unset {
			if err := e.storageHas(ctx, o.rv, why); err != nil {
				return err
			}
		}
		return e.config.Storage.Get(ctx, get.key, get.opts, get.into)
	})
}

// storageHas returns why unless storage reached rv, which some storages don't check for a GET.
func (e *engine) storageHas(ctx context.Context, rv uint64, why error) error {
	version, err := e.versions.Current(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil, version.Current < rv:
		return why
	}
	return nil
}

// askVersion requests storage's version, and those of keys if possible. A version below that of the
// cache at the start of the request implies that storage was restored from a backup.
func (e *engine) askVersion(ctx context.Context, keys []string) (answer freshness.Answer, err error) {
	began := e.condition.load()
	reached, asked := e.state.RV(), e.time.Now()
	e.metrics.VersionRequest()
	if s, ok := e.config.Storage.(capability.KeyVersioner); ok && len(keys) > 0 {
		answer.Keys, answer.Current, err = s.KeyVersions(ctx, keys)
		if err == nil && len(answer.Keys) != len(keys) {
			err = faultf(nil, "the storage of %s has returned %d resourceVersions for %d keys", e.config.GroupResource, len(answer.Keys), len(keys))
		}
	} else {
		answer.Current, err = e.config.Storage.GetCurrentResourceVersion(ctx)
	}
	if err != nil {
		e.handle(event{kind: versionFailed, asked: asked, cause: err})
		return freshness.Answer{}, errNoVersion
	}
	e.heard()
	if e.condition.load().refusedSince != 0 {
		e.handle(event{kind: versionRead})
	}
	e.source.HasAnswered()
	if answer.Current >= reached {
		e.versions.Told(answer.Current)
		e.rvSeenAt.Store(int64(e.time.Now()))
		return answer, nil
	}
	err = faultf(nil, "the storage of %s is at resourceVersion %d, it was at %d before", e.config.GroupResource, answer.Current, reached)
	if before, _ := e.handle(event{kind: restored, began: began, err: err}); before.lists != began.lists {
		return freshness.Answer{}, errNoVersion // reached may be of the previous history
	}
	return freshness.Answer{}, refusedError(err.Error(), freshness.RetrySeconds)
}

// consistentElement returns the element with the key, or nil, as of some time after the call, and
// the cache's resourceVersion. It is linearizable.
//
// If storage returns the version v of the key, v was its last write at a time T after the call. An
// element at v is the answer, whatever else the cache is missing, and so is its absence if v is 0.
// Otherwise the cache must reach v: it then has that write and perhaps later ones, all from after
// T. If storage returns no v, or 0 as for a deleted key, the cache must reach storage's version at
// T.
func (e *engine) consistentElement(ctx context.Context, key string) (element *watchcache.Element, at uint64, err error) {
	asked := key
	if _, ok := e.config.Storage.(capability.KeyVersioner); !ok {
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
	limit := freshness.Limit{Timeout: freshness.GetTimeout(e.config.FreshnessTimeout), Since: version.Since}
	if err := e.waiting.WaitFor(ctx, required, limit); err != nil {
		return nil, 0, err
	}
	element, at = e.state.Get(key)
	if version.Known && contradicts(element, at, version.Key, version.Current) {
		err := faultf(keyFaultf(nil, "%q is at %d in the cache (0: not at all), at %d in storage", key, writtenAt(element), version.Key),
			"the cache of %s contradicts its storage", e.config.GroupResource)
		e.handle(event{kind: suspicion, err: err})
		return nil, 0, err
	}
	return element, at, nil
}

// writtenAt returns the element's version, 0 for none, as storage does.
func writtenAt(e *watchcache.Element) uint64 {
	if e == nil {
		return 0
	}
	return e.RV
}

// contradicts reports whether a cache at resourceVersion at can't have the element (nil: none) if
// the key's last write up to current was at version. If so, the cache missed an event, or storage
// was restored from a backup and written to.
func contradicts(e *watchcache.Element, at, version, current uint64) bool {
	if e == nil {
		return version != 0 && at <= current
	}
	return e.RV < version || (e.RV != version && e.RV <= current)
}

type storedGet struct {
	key  string
	opts storage.GetOptions
	into runtime.Object
}
