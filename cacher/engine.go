// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	// minWindowEvents is how many events the window keeps however old they
	// are, so that clients of a quiet resource resume instead of listing.
	minWindowEvents = 128
	// compactionInterval is the time between two looks at what storage has
	// compacted, historyInterval between two looks whether it still is the
	// same storage, when no read has asked.
	compactionInterval = 15 * time.Second
	historyInterval    = time.Minute
	// listPageSize is the page size of the lists that the cache is filled
	// from, where storage does not stream them.
	listPageSize = 10_000
)

// engine is a cache that is awake: the state, who reads it and who follows
// storage. It is made when the cache starts or wakes up, and is gone when it
// sleeps.
type engine struct {
	config  Config
	indexes []servedIndex
	metrics *metrics.Resource
	// warmUntil is until when those whom a cache that has just woken up can't
	// serve yet wait for it, instead of being turned away. Zero: nobody does.
	warmUntil time.Time

	state      *watchcache.State
	readiness  *readiness
	freshness  *freshness
	versions   *versions
	registry   *registry
	dispatcher *dispatcher
	convert    *converter
	source     *source
	lastError  *atomic.Pointer[LastError] // the Cacher's

	tasks  tasks
	ctx    context.Context // ends with the engine
	cancel context.CancelFunc
}

// assemble puts the parts together. Nothing runs yet.
func assemble(config Config, m *metrics.Resource, lastError *atomic.Pointer[LastError]) *engine {
	ctx, cancel := context.WithCancel(context.Background())
	indexes, served := indexesOf(&config)
	c := &engine{
		config: config, indexes: served, metrics: m, lastError: lastError, ctx: ctx, cancel: cancel,
		readiness: newReadiness(config.Clock),
		state: watchcache.New(watchcache.Config{
			History: config.EventsHistoryWindow, WindowBytes: config.WindowBytes,
			MinEvents: minWindowEvents, Indexes: indexes,
		}),
		convert: &converter{
			versioner: config.Versioner, newObject: config.NewFunc,
			encodings: &encodings{budget: config.EncodingBytes},
		},
	}
	c.freshness = newFreshness(config, c.metrics, ctx.Done())
	c.versions = &versions{ask: c.askVersion, tasks: &c.tasks, ctx: ctx}
	indexed := make(map[string]bool, len(served))
	for _, index := range served {
		indexed[index.name] = true
	}
	c.registry = newRegistry(c.metrics, newProbes(config.ResourcePrefix,
		accessor{triggers: config.IndexerFuncs, indexed: indexed}))
	c.registry.mu.bookmarks.interval = config.BookmarkInterval
	c.dispatcher = &dispatcher{
		state: c.state, registry: c.registry, convert: c.convert, clock: config.Clock, metrics: c.metrics,
		catchUp: c.catchUp, trimmed: c.applied, wake: make(chan struct{}, 1),
		budget: newTimeBudget(config.DispatchBudget, config.Clock.Now()),
	}
	stream := watchStream(config)
	c.source = &source{
		storage: config.Storage, prefix: config.ResourcePrefix, newList: config.NewListFunc,
		clock: config.Clock, tasks: &c.tasks, watchContext: stream, broke: c.watchBroke, stuck: c.undeliverable,
		resync: make(chan error, 1),
	}
	return c
}

// start starts the goroutines that a cache has while it is awake.
func (c *engine) start() {
	reflector := cache.NewReflectorWithOptions(c.source, nil, &feed{engine: c}, cache.ReflectorOptions{
		Name:            "watchcache " + c.config.GroupResource.String(),
		TypeDescription: c.config.GroupResource.String(),
		Clock:           c.config.Clock,
	})
	reflector.WatchListPageSize = listPageSize
	requester := &progressRequester{
		clock: c.config.Clock, freshness: c.freshness, supported: c.watchProgress,
		request: func(ctx context.Context) error {
			return c.config.Storage.RequestWatchProgress(c.source.watchContext(ctx))
		},
	}
	for _, run := range []func(context.Context){
		func(ctx context.Context) { c.reflect(ctx, reflector) },
		c.dispatcher.dispatchEvents, requester.run, c.followStorage, c.followConsistency,
	} {
		c.tasks.run(func() { run(c.ctx) })
	}
}

// reflect lists and watches storage, again and again with growing pauses,
// until the context is done.
func (c *engine) reflect(ctx context.Context, reflector *cache.Reflector) {
	pause := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 5 * time.Second}
	_ = pause.DelayWithReset(c.config.Clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			c.listFailed(ctx, err)
		}
		return false, nil
	})
}

// streams numbers the watch streams of all caches in the process.
var streams atomic.Int64

// watchStream returns a function that marks contexts with gRPC metadata of
// this cache's own. etcd's client multiplexes watches with equal metadata over
// one stream: a stream of its own keeps the cache's watch from waiting behind
// others, and a progress request from reaching any but this one.
func watchStream(config Config) func(context.Context) context.Context {
	id := config.GroupResource.String() + "/" + strconv.FormatInt(streams.Add(1), 10)
	return func(ctx context.Context) context.Context {
		return metadata.NewOutgoingContext(ctx, metadata.Pairs("watchcache", id))
	}
}

// watchProgress tells whether storage reports the progress of the cache's
// watch at this time.
func (c *engine) watchProgress() bool {
	if c.config.WatchProgress != nil {
		return c.config.WatchProgress()
	}
	if s, ok := c.config.Storage.(interface{ WatchProgress() bool }); ok {
		return s.WatchProgress()
	}
	return etcdfeature.DefaultFeatureSupportChecker.Supports(storage.RequestWatchProgress)
}

// currentVersion returns storage's version at some time after the call.
func (c *engine) currentVersion(ctx context.Context) (uint64, error) {
	return c.versions.current(ctx)
}

// askVersion asks storage for its version. One below a version that the cache
// had reached before it asked is of another history: storage was restored from
// a backup.
func (c *engine) askVersion(ctx context.Context) (uint64, error) {
	reached := c.state.RV()
	c.metrics.VersionRequest()
	rv, err := c.config.Storage.GetCurrentResourceVersion(ctx)
	if err != nil || rv >= reached {
		return rv, err
	}
	err = fmt.Errorf("the storage of %s is at resourceVersion %d, it was at %d before", c.config.GroupResource, rv, reached)
	c.noteError(err)
	c.readiness.set(false)
	c.source.listAnew(err)
	return 0, apierrors.NewTooManyRequests(err.Error(), retryTooLarge)
}

// followStorage looks from time to time at what storage does not tell by
// itself: what it has compacted, and that it was restored from a backup. It
// returns when the context is done.
func (c *engine) followStorage(ctx context.Context) {
	asked := c.config.Clock.Now()
	for {
		select {
		case <-c.config.Clock.After(compactionInterval):
		case <-ctx.Done():
			return
		}
		c.lookAtCompaction()
		if now := c.config.Clock.Now(); now.Sub(asked) >= historyInterval {
			asked = now
			_, _ = c.currentVersion(ctx) // what is wrong is noted there
		}
	}
}

func (c *engine) lookAtCompaction() {
	if rv := c.config.Storage.CompactRevision(); rv > 0 {
		c.state.Compacted(uint64(rv))
	}
}

// catchUp starts to bring a parked watcher up to date.
func (c *engine) catchUp(w *watcher, quit chan struct{}, position watchcache.Position) {
	run := (&catchUp{engine: c, watcher: w, quit: quit, position: position}).run
	if !c.tasks.run(run) {
		// Stopping: the watcher ends here, where nobody else sends to it.
		c.registry.end(w, endShutdown)
		close(w.result)
	}
}

// applied counts what a change or time has done.
func (c *engine) applied(watchcache.Applied) {
	stats := c.state.Stats()
	c.metrics.SetObjects(stats.Objects)
	c.metrics.SetResourceVersion(stats.RV)
	c.metrics.SetWindow(stats.WindowEvents, stats.WindowBytes)
}

// replaced is called when the state was listed anew, at rv.
func (c *engine) replaced(rv uint64) {
	c.source.listed()
	c.applied(watchcache.Applied{})
	c.metrics.Relist()
	c.lookAtCompaction()
	c.freshness.reached(rv)
	c.dispatcher.wakeUp()
	c.readiness.set(true)
}

// watchBroke notes that a watch of storage ended and is to be resumed.
func (c *engine) watchBroke(err error) {
	c.metrics.WatchBroken()
	c.noteError(fmt.Errorf("watching the storage of %s: %w", c.config.GroupResource, err))
}

// undeliverable tells everyone of something that storage can't deliver though
// it answers: an object that can't be decoded, most likely.
func (c *engine) undeliverable(failure watch.Event) {
	c.metrics.Undeliverable()
	klog.ErrorS(apierrors.FromObject(failure.Object), "Storage has something that it can't deliver: the watch cache stands still before it",
		"resource", c.config.GroupResource, "resourceVersion", c.state.RV())
	c.dispatcher.fail(failure)
}

// listFailed notes that storage could not be listed. If that is not because it
// is away, it has something that can't be read, and those who watch are told:
// they would otherwise wait for events without knowing that none can come.
func (c *engine) listFailed(ctx context.Context, err error) {
	if c.readiness.ready() && c.source.answers(ctx) {
		c.undeliverable(failureOf(err))
	}
	err = fmt.Errorf("listing the storage of %s: %w", c.config.GroupResource, err)
	c.readiness.failed(err)
	c.noteError(err)
}

func (c *engine) noteError(err error) {
	c.lastError.Store(&LastError{Message: err.Error(), Time: c.config.Clock.Now()})
	klog.V(1).InfoS("The watch cache met an error and recovers", "resource", c.config.GroupResource, "err", err)
}

// stop ends the engine, and returns when everything that it has started has
// ended. It may be called more than once, and by many at a time.
func (c *engine) stop() {
	c.readiness.stop()
	c.cancel()
	c.registry.close()
	c.tasks.close()
}
