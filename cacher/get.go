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
func (r *reader) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	prepared, err := storage.PrepareKey(r.config.ResourcePrefix, key, false)
	if err != nil {
		return err
	}
	rv, err := r.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return minors.MalformedVersion(err)
	}
	target, err := conversion.EnforcePtr(into)
	if err != nil {
		return err
	}
	o := &readOptions{unset: opts.ResourceVersion == "", rv: rv, fromStorage: r.config.ConsistentGetFromStorage}
	var seen observation
	// Observe GETs that may wait or have a trace, and a sample of others.
	if o.unset || o.rv > 0 || rand.Uint32()%timedOf == 0 || trace.SpanFromContext(ctx).IsRecording() {
		r.observe(&seen)
	}
	answered, err := r.answerGet(ctx, o, prepared, storedGet{key, opts, into}, target, &seen)
	if seen.began != 0 {
		r.observed(ctx, &seen, o, answered, err)
	}
	return err
}

func (r *reader) answerGet(ctx context.Context, o *readOptions, key string, get storedGet, target reflect.Value, seen *observation) (metrics.Decision, error) {
	d, why := r.route(o)
	if !d.served() {
		r.observe(seen)
		return r.getElsewhere(ctx, o, d, why, get)
	}
	element, at, err := r.element(ctx, key, d)
	if err != nil {
		r.observe(seen)
		d, why = r.reroute(ctx, o, d, err)
		return r.getElsewhere(ctx, o, d, why, get)
	}
	if d.rv > 0 || d.kind == readConsistent {
		r.gotReady(seen) // others did not wait
	}
	r.metrics.Read(metrics.VerbGet, d.kind)
	seen.evaluated = 1
	if element == nil {
		if !get.opts.IgnoreNotFound {
			return d.kind, r.notFoundError(key, at)
		}
		return d.kind, runtime.SetZeroValue(get.into)
	}
	seen.returned = 1
	return d.kind, copyObject(target, element, d.kind == readConsistent)
}

// element returns the element with the key, or nil, as fresh as d requires, and the cache's
// resourceVersion.
func (r *reader) element(ctx context.Context, key string, d decision) (element *watchcache.Element, at uint64, err error) {
	if d.kind == readConsistent || (d.rv > 0 && d.rv > r.waiting.At()) {
		var cancel context.CancelFunc
		ctx, cancel = freshness.BeforeDeadline(ctx)
		defer cancel()
	}
	if d.kind == readConsistent {
		return r.consistentElement(ctx, key)
	}
	if d.rv > 0 {
		err = r.waiting.WaitFor(ctx, d.rv, freshness.Limit{Timeout: freshness.GetTimeout(r.config.FreshnessTimeout)})
	}
	element, at = r.state.Get(key)
	return element, at, err
}

// getElsewhere answers a GET that the cache does not serve. After a wait, it fails if storage has
// not reached the version.
func (r *reader) getElsewhere(ctx context.Context, o *readOptions, d decision, why error, get storedGet) (metrics.Decision, error) {
	return r.elsewhere(ctx, o, d, why, func(ctx context.Context) error {
		if d.afterWait && !o.unset {
			if err := r.storageHas(ctx, o.rv, why); err != nil {
				return err
			}
		}
		return r.config.Storage.Get(ctx, get.key, get.opts, get.into)
	})
}

// storageHas returns why unless storage reached rv, which some storages don't check for a GET.
func (r *reader) storageHas(ctx context.Context, rv uint64, why error) error {
	version, err := r.versions.Current(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil, version.Current < rv:
		return why
	}
	return nil
}

// consistentElement returns the element with the key, or nil, as of some time after the call, and
// the cache's resourceVersion. It is linearizable.
//
// If storage returns the version v of the key, v was its last write at a time T after the call. An
// element at v is the answer, whatever else the cache is missing, and so is its absence if v is 0.
// Otherwise the cache must reach v: it then has that write and perhaps later ones, all from after
// T. If storage returns no v, or 0 as for a deleted key, the cache must reach storage's version at
// T.
func (r *reader) consistentElement(ctx context.Context, key string) (element *watchcache.Element, at uint64, err error) {
	asked := key
	if _, ok := r.config.Storage.(capability.KeyVersioner); !ok {
		asked = ""
	}
	version, err := r.versions.OfKey(ctx, asked)
	if err != nil {
		return nil, 0, err
	}
	if version.Known {
		if element, at = r.state.Get(key); writtenAt(element) == version.Key {
			return element, at, nil
		}
	}
	required := version.Key
	if version.Key == 0 {
		required = version.Current
	}
	limit := freshness.Limit{Timeout: freshness.GetTimeout(r.config.FreshnessTimeout), Since: version.Since}
	if err := r.waiting.WaitFor(ctx, required, limit); err != nil {
		return nil, 0, err
	}
	element, at = r.state.Get(key)
	if version.Known && contradicts(element, at, version.Key, version.Current) {
		err := faultf(keyFaultf(nil, "%q is at %d in the cache (0: not at all), at %d in storage", key, writtenAt(element), version.Key),
			"the cache of %s contradicts its storage", r.config.GroupResource)
		r.condition.handle(event{kind: suspicion, err: err})
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
