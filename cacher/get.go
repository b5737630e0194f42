// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Get implements storage.Interface. Without a resourceVersion it is a
// consistent read, and into is then the caller's own; with one, everything below
// the top level of into is shared with the cache.
func (c *Cacher) Get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	e := c.lifecycle.acquire(ctx, wokenByGet)
	defer c.lifecycle.release()
	return e.get(ctx, key, opts, into)
}

func (e *engine) get(ctx context.Context, key string, opts storage.GetOptions, into runtime.Object) error {
	prepared, err := storage.PrepareKey(e.config.ResourcePrefix, key, false)
	if err != nil {
		return badKeyError(err)
	}
	rv, err := e.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return badResourceVersionError(err)
	}
	target, err := conversion.EnforcePtr(into)
	if err != nil {
		return err
	}
	o := &readOptions{unset: opts.ResourceVersion == "", rv: rv}
	seen := observation{name: spanGet}
	if observesGet(ctx, o) {
		ctx = e.observe(ctx, &seen)
	}
	answered, err := e.answerGet(ctx, o, prepared, storedGet{key, opts, into}, target, &seen)
	if seen.timed {
		e.observedRead(ctx, &seen, metrics.VerbGet, answered, err)
	}
	return err
}

// answerGet answers a GET, and returns by which decision it did.
func (e *engine) answerGet(ctx context.Context, o *readOptions, key string, get storedGet, target reflect.Value, seen *observation) (metrics.Decision, error) {
	d, why := e.route(ctx, o)
	if !d.served() {
		e.startClock(seen)
		return e.getElsewhere(ctx, o, d, why, get)
	}
	element, at, err := e.element(ctx, key, d)
	if err != nil {
		e.startClock(seen)
		d, why = e.reroute(ctx, o, d, err)
		return e.getElsewhere(ctx, o, d, why, get)
	}
	if d.rv > 0 || d.kind == readConsistent {
		e.gotReady(seen) // any other GET has not waited
	}
	e.metrics.Read(metrics.VerbGet, d.kind)
	seen.evaluated = 1
	if element == nil {
		if !get.opts.IgnoreNotFound {
			return d.kind, storage.NewKeyNotFoundError(key, int64(at))
		}
		return d.kind, runtime.SetZeroValue(get.into)
	}
	seen.returned = 1
	return d.kind, copyObject(target, element, d.kind == readConsistent)
}

// element returns the element with the key, nil if there is none, as fresh as the
// decision wants it, and the resourceVersion that the cache was at.
func (e *engine) element(ctx context.Context, key string, d decision) (element *watchcache.Element, at uint64, err error) {
	if d.kind == readConsistent || (d.rv > 0 && d.rv > e.waiting.At()) {
		var cancel context.CancelFunc
		ctx, cancel = fresh.BeforeDeadline(ctx)
		defer cancel()
	}
	if d.kind == readConsistent {
		return e.consistentElement(ctx, key)
	}
	if d.rv > 0 {
		err = e.waiting.WaitFor(ctx, d.rv, fresh.Limit{Timeout: fresh.GetTimeout(e.config.FreshnessTimeout)})
	}
	element, at = e.state.Get(key)
	return element, at, err
}

// getElsewhere answers a GET that the cache does not serve. A late one whose
// version storage has not reached either is told when to retry.
func (e *engine) getElsewhere(ctx context.Context, o *readOptions, d decision, why error, get storedGet) (metrics.Decision, error) {
	return e.elsewhere(ctx, o, d, why, func(ctx context.Context) error {
		if !d.late {
			return e.config.Storage.Get(ctx, get.key, get.opts, get.into)
		}
		stored := e.hedgedGet(ctx, get)
		if storage.IsTooLargeResourceVersion(stored) && storage.IsTooLargeResourceVersion(why) {
			return why
		}
		return stored
	})
}
