// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/kube-watchcache/watchcache/watchcache"
)

// errNoProgress refuses a stream of the initial state that could not be
// brought up to date. Clients fall back to a list on any error.
var errNoProgress = errors.New("the storage can't report the progress of its watch, so the initial state can't be streamed; list and watch instead")

// Watch implements storage.Interface. What is wrong with the key or the
// resourceVersion's form, and a cache that is not ready (429), is returned as
// an error; what is wrong with the history asked for comes as an ERROR event,
// as from storage itself.
func (c *Cacher) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	e := c.enter()
	defer c.leave()
	return e.watch(ctx, key, opts)
}

func (c *engine) watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := storage.PrepareKey(c.config.ResourcePrefix, key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := c.config.Versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if !c.readiness.ready() && !c.warm(ctx) {
		return nil, c.readiness.refusal()
	}
	start, err := c.watchStart(ctx, rv, opts)
	switch {
	case ctx.Err() != nil:
		return endedWatch(), nil
	case err != nil:
		return endedWatch(failureOf(err)), nil
	}
	w := &watcher{
		registry:  c.registry,
		result:    make(chan watch.Event, c.config.WatchBuffer),
		after:     start.after,
		bookmarks: opts.Predicate.AllowWatchBookmarks || opts.ProgressNotify,
		started:   c.config.Clock.Now(),
	}
	w.deadline, _ = ctx.Deadline()
	quit, ok := c.registry.add(w, newSelected(key, opts.Recursive, opts.Predicate))
	if !ok {
		return nil, c.readiness.refusal()
	}
	c.registry.follow(ctx, w)
	catchUp := &catchUp{engine: c, watcher: w, quit: quit, position: start.position}
	endBookmark := start.snapshot != nil && streamsInitialState(opts) && opts.Predicate.AllowWatchBookmarks
	if !c.tasks.run(func() {
		catchUp.start(start.snapshot, endBookmark, func() { flowcontrol.WatchInitialized(ctx) })
	}) {
		c.registry.end(w, endShutdown)
		return nil, c.readiness.refusal()
	}
	return w, nil
}

// follow ends w when its request's context ends, and puts it down for
// bookmarks.
func (r *registry) follow(ctx context.Context, w *watcher) {
	release := context.AfterFunc(ctx, func() {
		reason := endStopped
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			reason = endDeadline
		}
		r.end(w, reason)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.ended {
		return
	}
	w.release = release
	if w.bookmarks {
		r.mu.bookmarks.schedule(w, w.started)
	}
}

// watchStart is where a watch begins.
type watchStart struct {
	snapshot *watchcache.Snapshot // initial events; nil: none
	position watchcache.Position  // of the first event to look at
	after    uint64               // events at or below it are not for the watch
}

// streamsInitialState tells whether a watch asks for the initial state and the
// mark at its end (KEP-3157).
func streamsInitialState(opts storage.ListOptions) bool {
	return opts.SendInitialEvents != nil && *opts.SendInitialEvents
}

// watchStart follows the semantics of watch in the Kubernetes API concepts:
//
//	sendInitialEvents  rv ""               rv "0"          rv N
//	not set            state, most recent  state, any      after N
//	true               state, most recent  state, any      state, not older than N
//	false              most recent         any             after N
func (c *engine) watchStart(ctx context.Context, rv uint64, opts storage.ListOptions) (watchStart, error) {
	withState := streamsInitialState(opts) || (opts.SendInitialEvents == nil && rv == 0)
	if !withState {
		return c.watchAfter(ctx, rv, opts.ResourceVersion == "")
	}
	required, err := c.watchRequires(ctx, rv, opts)
	if err != nil {
		return watchStart{}, err
	}
	if err := c.freshness.wait(ctx, required); err != nil {
		return watchStart{}, err
	}
	snapshot := c.state.Latest()
	return watchStart{snapshot: snapshot, position: snapshot.Next(), after: snapshot.RV()}, nil
}

// watchRequires returns how fresh the initial state must be.
func (c *engine) watchRequires(ctx context.Context, rv uint64, opts storage.ListOptions) (uint64, error) {
	progress := c.watchProgress()
	switch {
	case opts.ResourceVersion == "" && progress:
		return c.currentVersion(ctx)
	case opts.ResourceVersion == "" && opts.SendInitialEvents == nil:
		return 0, nil // as k8s.io/apiserver's cacher always does
	case rv > c.state.RV() && !progress, opts.ResourceVersion == "":
		return 0, errNoProgress
	}
	return rv, nil
}

// watchAfter begins without the initial state.
func (c *engine) watchAfter(ctx context.Context, rv uint64, mostRecent bool) (watchStart, error) {
	if mostRecent {
		current, err := c.currentVersion(ctx)
		if err != nil {
			return watchStart{}, err
		}
		rv = current
	}
	if rv == 0 {
		snapshot := c.state.Latest()
		return watchStart{position: snapshot.Next(), after: snapshot.RV()}, nil
	}
	position, err := c.state.PositionAfter(rv)
	if err != nil {
		return watchStart{}, expiredError(err)
	}
	return watchStart{position: position, after: rv}, nil
}

// endedWatch is a watch that brings some events and ends.
func endedWatch(events ...watch.Event) watch.Interface {
	ended := make(finished, len(events))
	for _, event := range events {
		ended <- event
	}
	close(ended)
	return ended
}

// finished implements watch.Interface over a channel that is closed already.
type finished chan watch.Event

func (f finished) ResultChan() <-chan watch.Event { return f }
func (f finished) Stop()                          {}
