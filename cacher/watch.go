// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/kube-watchcache/watchcache/cacher/internal/dispatch"
	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/internal/minors"
)

// Watch implements storage.Interface. As in storage, a resourceVersion outside of the history
// results in an ERROR event.
func (c *Cacher) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if probe := c.config.encoder().Probe(ctx); probe != nil {
		return probe, nil
	}
	return c.running.Watch(ctx, key, opts)
}

// Watch implements storage.Interface.
func (e *engine) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := storage.PrepareKey(e.config.ResourcePrefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	if err := minors.CheckWatch(opts); err != nil {
		return nil, err
	}
	rv, err := e.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, overStatus()
	}
	if err := selectorRefusal(&opts.Predicate); err != nil {
		return nil, err
	}
	if !e.condition.load().served() {
		return nil, e.condition.refusal()
	}
	if c := e.condition.load(); c.phase == paused { // the watch would end at once
		return nil, refusedError("the watch cache is paused: storage cannot deliver the next change", c.retryAfter(e.time.Now()))
	}
	query := match.NewQuery(key, opts.Recursive, opts.Predicate)
	start, err := e.watchStart(ctx, &query, rv, opts)
	switch {
	case ctx.Err() != nil:
		return endedWatch(), nil
	case err != nil:
		if refused := e.refusedWatch(err, opts); refused != nil {
			return nil, refused
		}
		return endedWatch(source.Failure(err)), nil
	}
	var encoder WatchEncoder
	if start.Snapshot != nil {
		encoder = e.encodings.Watch(ctx)
	}
	w, ok := e.fanout.Open(ctx, dispatch.Request{
		Query: query, Start: start,
		Client:           clientOf(ctx),
		Bookmarks:        opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify,
		InitialEventsEnd: ptr.Deref(opts.SendInitialEvents, false) && opts.Predicate.AllowWatchBookmarks, // KEP-3157
		Encoder:          encoder,
	})
	if !ok {
		return nil, e.condition.refusal()
	}
	return w, nil
}

// refusedWatch returns a 429 for a watch that may succeed later, or nil. client-go retries a watch
// after a 429; after any other failure before the first event it lists at resourceVersion 0
// (regression 156).
func (e *engine) refusedWatch(err error, opts storage.ListOptions) error {
	switch {
	case errors.Is(err, tasks.ErrStopped):
		return e.condition.refusal()
	case errors.Is(err, errNoProgress), apierrors.IsResourceExpired(err):
		return nil
	case storage.IsTooLargeResourceVersion(err) && opts.ResourceVersion != "" && e.condition.load().contact == answering:
		return nil
	case errors.Is(err, errDoubtful):
		return refusedError(errDoubtful.Error(), freshness.RetrySeconds)
	}
	return refusedError(errNotCaughtUp.Error(), freshness.RetrySeconds)
}

// Bookmark implements running.
func (e *engine) Bookmark(ctx context.Context) error {
	if !e.condition.load().served() {
		return nil
	}
	if e.storage.watchProgress() {
		half := ctx
		if deadline, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			half, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
			defer cancel()
		}
		_ = e.reachCurrent(half)
	}
	return e.fanout.Bookmark(ctx)
}

// reachCurrent waits until the cache reaches storage's current version.
func (e *engine) reachCurrent(ctx context.Context) error {
	rv, err := e.storage.currentVersion(ctx)
	if err != nil {
		return err
	}
	return e.waiting.Wait(ctx, rv)
}

// watchStart returns where a watch begins, according to the Kubernetes API concepts:
//
//	sendInitialEvents  rv ""               rv "0"          rv N
//	not set            state, most recent  state, any      after N
//	true               state, most recent  state, any      state, not older than N
//	false              most recent         any             after N
func (e *engine) watchStart(ctx context.Context, query *match.Query, rv uint64, opts storage.ListOptions) (dispatch.Start, error) {
	// Don't show a wrong state.
	reached := e.state.RV()
	relisted, err := e.condition.awaitVerified(ctx, e.config.FreshnessTimeout)
	if err != nil {
		return dispatch.Start{}, err
	}
	withState := ptr.Deref(opts.SendInitialEvents, rv == 0)
	if relisted && !withState && rv > 0 && rv <= reached {
		return dispatch.Start{}, expiredError(errDoubtful) // the client may have the wrong state
	}
	if !withState {
		return e.watchAfter(ctx, query, rv, opts.ResourceVersion == "")
	}
	required, err := e.watchRequires(ctx, rv, opts)
	if err != nil {
		return dispatch.Start{}, err
	}
	if err := e.waiting.Wait(ctx, required); err != nil {
		return dispatch.Start{}, err
	}
	if required == 0 {
		e.endOfRevision(ctx, false)
	}
	snapshot := e.state.Latest()
	return dispatch.Start{Snapshot: snapshot, Position: snapshot.Next(), Shown: snapshot.RV()}, nil
}

// watchRequires returns the minimum version of the initial state.
func (e *engine) watchRequires(ctx context.Context, rv uint64, opts storage.ListOptions) (uint64, error) {
	progress := e.storage.watchProgress()
	switch {
	case opts.ResourceVersion == "" && progress:
		return e.storage.currentVersion(ctx)
	case opts.ResourceVersion == "" && opts.SendInitialEvents == nil:
		return 0, nil // as in k8s.io/apiserver's cacher
	case rv > e.state.RV() && !progress, opts.ResourceVersion == "":
		return 0, errNoProgress
	}
	return rv, nil
}

// watchAfter returns where a watch without initial state begins. It may begin before the window if
// it matches none of the evicted events.
func (e *engine) watchAfter(ctx context.Context, query *match.Query, rv uint64, mostRecent bool) (dispatch.Start, error) {
	if mostRecent {
		current, err := e.storage.currentVersion(ctx)
		if err != nil {
			return dispatch.Start{}, err
		}
		rv = current
	}
	if rv == 0 {
		snapshot := e.state.Latest()
		return dispatch.Start{Position: snapshot.Next(), Shown: snapshot.RV()}, nil
	}
	if err := e.foreign(ctx, rv); err != nil {
		return dispatch.Start{}, err
	}
	interest := e.indexes.Interest(query)
	position, beyond, err := e.state.PositionFor(rv, interest)
	// The first piece may not reach far enough back.
	for tries := 2; err != nil && tries > 0 && e.backfill.await(ctx, rv); tries-- {
		if e.ctx.Err() != nil {
			return dispatch.Start{}, tasks.ErrStopped // unlike an expiry, does not make the client list
		}
		position, beyond, err = e.state.PositionFor(rv, interest)
	}
	if err != nil {
		return dispatch.Start{}, expiredError(err)
	}
	if e.condition.load().ambiguous(rv, e.time.Now()) {
		return dispatch.Start{}, expiredError(errDoubtful)
	}
	if beyond {
		e.metrics.BeyondWindow()
	}
	return dispatch.Start{Position: position, After: rv, Shown: rv}, nil
}

func endedWatch(events ...watch.Event) watch.Interface {
	ended := make(chan watch.Event, len(events))
	for _, event := range events {
		ended <- event
	}
	close(ended)
	return watch.NewProxyWatcher(ended)
}

// foreign returns an error for a watch after a version that storage has not reached. The version is
// of a lost history, and the watch would silently skip everything up to rv.
func (e *engine) foreign(ctx context.Context, rv uint64) error {
	if rv <= e.state.RV() || !e.storage.watchProgress() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.FreshnessTimeout)
	defer cancel()
	current, err := e.storage.currentVersion(ctx)
	if err != nil || rv <= current {
		return nil // storage may never reach that version
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("the resourceVersion %d is of another history: the storage of %s is at %d", rv, e.config.GroupResource, current))
}
