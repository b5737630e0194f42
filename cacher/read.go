// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"time"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// decide decides about a read from what the cache is able to do now.
func (e *engine) decide(o *readOptions) decision {
	s := readState{
		progress:      e.watchProgress(),
		consistentGet: !e.config.ConsistentGetFromStorage,
		doubtful:      e.trust.doubtful.Load(),
	}
	s.ready, s.stopped = e.readiness.decides()
	if !o.list {
		return decide(o, &s) // a GET has nothing to do with earlier versions
	}
	s.rv, s.oldest, s.compacted = e.state.Reach()
	s.trusted, s.kept = e.trust.from.Load(), e.kept
	if compacted := e.config.Storage.CompactRevision(); compacted > 0 && uint64(compacted) > s.compacted {
		// Sooner than followStorage finds out.
		s.compacted = uint64(compacted)
		e.state.Compacted(s.compacted)
	}
	return decide(o, &s)
}

// A GET and a LIST take the same way. route decides who answers. The cache
// serves it, or fails to, and then reroute decides again. Reads that the cache
// does not serve are answered by storage or refused.

// route decides how a read is answered, and why the cache does not serve it if
// that needs to be told.
func (e *engine) route(ctx context.Context, o *readOptions) (d decision, why error) {
	d = e.decide(o)
	if d.kind == readRefuse && o.list && e.warm(ctx) {
		d = e.decide(o)
	}
	switch {
	case d.kind == readRefuse && o.list && !e.readiness.listable():
		// An object can't be listed; this LIST may be of others.
		return decision{kind: readDelegate, bounded: true}, e.readiness.refusal()
	case d.kind == readRefuse:
		return d, e.readiness.refusal()
	case d.bounded:
		return d, errDoubtful
	}
	return d, nil
}

// reroute decides again about a read that the cache has failed to serve with
// err. If the decision stays, the read fails. Storage answers where a version has
// just gone, and reads that have waited in vain: each GET, and a few of the
// consistent LISTs.
func (e *engine) reroute(ctx context.Context, o *readOptions, d decision, err error) (again decision, why error) {
	switch {
	case errors.Is(err, tasks.ErrStopped):
		return decision{kind: readRefuse}, e.readiness.refusal()
	case errors.Is(err, watchcache.ErrExpired), errors.Is(err, watchcache.ErrCompacted):
		return decision{kind: readDelegate}, err
	case errors.Is(err, watchcache.ErrFuture):
		// The history that had the version was replaced by a restored one.
		return d, tooLargeError(d.rv, e.state.RV())
	case ctx.Err() != nil:
		return d, err
	case errors.Is(err, context.DeadlineExceeded):
		return d, e.lateError(d) // of fresh.BeforeDeadline, while the client still listens
	case !o.list:
		return decision{kind: readDelegate, late: true}, err
	case d.kind == readConsistent:
		return decision{kind: readDelegate, bounded: true}, err
	}
	return d, err
}

// elsewhere answers a read that the cache does not serve, and counts it: storage
// answers, or why does.
//
// elsewhere returns how the read was answered, which may be otherwise than was
// decided.
func (e *engine) elsewhere(ctx context.Context, o *readOptions, d decision, why error, fromStorage func(context.Context) error) (metrics.Decision, error) {
	if d.bounded {
		leave := e.admission.Enter()
		if leave == nil {
			e.metrics.StaleRead(metrics.StaleRefused)
			e.metrics.Read(o.verb(), readRefuse)
			return readRefuse, notFreshError(why, e.readiness.retryStale())
		}
		defer leave()
	}
	if d.bounded || d.late {
		e.metrics.StaleRead(metrics.StaleFromStorage)
	}
	e.metrics.Read(o.verb(), d.kind)
	switch {
	case d.kind != readDelegate:
		return d.kind, why
	case d.bounded, d.late, e.contact.inDoubt():
		return d.kind, e.contact.bound(ctx, fromStorage)
	}
	return d.kind, fromStorage(ctx)
}

// verb is what metrics call the read.
func (o *readOptions) verb() metrics.Verb {
	if o.list {
		return metrics.VerbList
	}
	return metrics.VerbGet
}

// mayWait reports whether the read may have to wait for the cache: any but a GET
// at resourceVersion 0.
func (o *readOptions) mayWait() bool { return o.list || o.unset || o.rv > 0 }

// fresh waits until the cache is as fresh as the decision wants it.
func (e *engine) fresh(ctx context.Context, d decision) error {
	if d.kind != readConsistent && d.rv <= e.waiting.At() {
		return nil
	}
	ctx, cancel := fresh.BeforeDeadline(ctx)
	defer cancel()
	if d.kind != readConsistent {
		return e.waiting.Wait(ctx, d.rv)
	}
	version, err := e.versions.Current(ctx)
	if err != nil {
		return err
	}
	return e.waiting.WaitFor(ctx, version.Current, fresh.Limit{Timeout: e.config.FreshnessTimeout, Since: version.Since})
}

// lateError is what a read fails with whose client's deadline is near.
func (e *engine) lateError(d decision) error {
	if d.kind == readConsistent {
		return awayStatus(errAway)
	}
	return tooLargeError(d.rv, e.waiting.At())
}

// revisionTimeout is how long a read of any age waits for the end of a
// revision of which events have come.
const revisionTimeout = 50 * time.Millisecond

// endOfRevision waits for the end of the revision that is under way, if there is
// one, but not for long: a client that has got an event of it expects to find it
// in what it reads next, though it asks for no version.
func (e *engine) endOfRevision(ctx context.Context, quiet bool) {
	if rv := e.state.Unfinished(); rv != 0 {
		_ = e.waiting.WaitFor(ctx, rv, fresh.Limit{Timeout: revisionTimeout, Quiet: quiet})
	}
}

// snapshot returns what a read that was decided to be served is served from.
func (e *engine) snapshot(ctx context.Context, d decision) (*watchcache.Snapshot, error) {
	if err := e.fresh(ctx, d); err != nil {
		return nil, err
	}
	if d.kind == readExact || d.kind == readContinue {
		snapshot, err := e.state.AtUntil(ctx.Done(), d.rv)
		if errors.Is(err, watchcache.ErrStopped) {
			return nil, ctx.Err()
		}
		return snapshot, err
	}
	if d.kind == readLatest && d.rv == 0 {
		e.endOfRevision(ctx, true)
	}
	return e.state.Latest(), nil
}
