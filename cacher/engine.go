// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher/internal/dispatch"
	"github.com/kube-watchcache/watchcache/cacher/internal/freshness"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/source"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/capability"
	"github.com/kube-watchcache/watchcache/watchcache"
)

const (
	// minWindowEvents is the minimum number of events in the window, at any age, so that clients of
	// a quiet resource can resume.
	minWindowEvents = 128
	// floorValues limits the floors of namespaces, and of each index. One takes some 100 bytes.
	floorValues = 16_384
	// minWindowCeiling is the least hard limit of the window, in bytes, against a stuck dispatcher.
	minWindowCeiling = 16 << 20
	// listPageSize is for the lists that fill the cache.
	listPageSize = 5_000
)

// base holds the values shared by the engine and its parts.
type base struct {
	config    Config
	metrics   *metrics.Resource
	time      timeline.Timeline
	state     *watchcache.State
	condition *conditionHolder
	versions  *freshness.VersionRequests
	waiting   *freshness.WaitingReads
	journal   journal
	ctx       context.Context
	tasks     tasks.Group
}

// engine is a running cache, i.e. the state and the parts that fill it from storage, serve reads
// and feed watchers. The parts have locks and goroutines; the engine has neither.
type engine struct {
	reader
	comparer comparer
	backfill backfill
	progress *freshness.ProgressRequester
	fanout   *dispatch.Fanout
	// failedIndex is the first failure of an indexer since the last second.
	failedIndex atomic.Pointer[error]
	// adapting is true while adapt runs.
	adapting atomic.Bool
	cancel   context.CancelFunc
}

// assemble wires an engine without starting it.
func assemble(config Config, m *metrics.Resource, errors *errorLog) *engine {
	b := &base{config: config, metrics: m, time: timeline.New(config.Clock)}
	e := &engine{reader: reader{base: b, wrapped: config.Storage, storage: &follower{base: b}}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.encodings = config.encoder().NewStore(config.GroupResource)
	e.condition = newConditionHolder(limitsOf(&config), e.time, e)
	e.indexes = indexesOf(&e.config, e.indexFailed)
	e.state = watchcache.New(watchcache.Config{
		History: config.EventsHistoryWindow, WindowBytes: config.WindowBytes, HeldBytes: config.initialBytes,
		CeilingBytes: max(2*config.WindowBytes, minWindowCeiling), MinEvents: minWindowEvents, BackfillEvents: backfillEvents, Indexes: e.indexes.OfState(),
		Floors: e.indexes.Floors(), FloorValues: floorValues,
	})
	e.journal = journal{
		Logger: loggerOf(config.GroupResource), config: &e.config, state: e.state, errors: errors,
		outages: newOutageMember(&config, e.condition),
	}
	e.versions = freshness.NewVersionRequests(e.ctx, config.Clock, &e.tasks, m, config.FreshnessTimeout,
		freshness.GetTimeout(config.FreshnessTimeout), e.storage.requestVersion)
	e.waiting = freshness.NewWaitingReads(config.Clock, config.FreshnessTimeout, m, e.condition, e.ctx.Done())
	// Readers wait for FreshnessTimeout before admission, so with this period we always admit a
	// retry.
	e.admission = freshness.NewAdmission(config.Clock, config.MaxFallbackLists, config.FreshnessTimeout)
	reportDelay := reportDelayOf(config.Storage)
	e.storage.source = source.New(source.Config{
		Storage: config.Storage, Prefix: config.ResourcePrefix, NewList: config.NewListFunc,
		Resource: config.GroupResource.String(), Clock: config.Clock, Tasks: &e.tasks, ReportDelay: reportDelay,
		Owner: e.storage,
	})
	e.progress = freshness.NewProgressRequester(freshness.ProgressConfig{
		Clock: config.Clock, Waiting: e.waiting, Versions: e.versions,
		Storage: e.storage, State: e.state, Silence: e.storage, ReportDelay: reportDelay,
	})
	e.comparer = comparer{base: b, source: e.storage.source, now: make(chan struct{}, 1)}
	e.backfill.base, e.backfill.storage = b, e.storage
	e.backfill.untilListed, e.backfill.end = context.WithCancel(e.ctx)
	e.fanout = dispatch.New(dispatch.Config{
		Owner: e, Events: e.encodings, State: e.state, Indexes: e.indexes,
		Clock: config.Clock, Time: e.time, Metrics: m, Tasks: &e.tasks, Done: e.ctx.Done(),
		Versioner: config.Versioner, NewObject: config.NewFunc,
		WatchBuffer: config.WatchBuffer, DispatchBudget: config.DispatchBudget, BookmarkInterval: config.BookmarkInterval,
		InitialEventsTimeout: config.initialTimeout, InitialEventsBytes: config.initialBytes,
	})
	e.limitEncodings(0)
	return e
}

// reportDelayOf returns how long a storage takes to report progress if it is slow, or 0.
func reportDelayOf(s storage.Interface) time.Duration {
	if slow, ok := s.(capability.SlowReporter); ok {
		return slow.ReportsWithin()
	}
	return 0
}

// indexesOf returns the configured indexes, which call failed with the state's lock held.
func indexesOf(config *Config, failed func(index, key string, err error)) *match.Indexes {
	indexed := match.Config{
		Prefix: config.ResourcePrefix, Triggers: config.IndexerFuncs, Labels: config.LabelIndexes, Failed: failed,
		Adaptive: config.AdaptiveIndexes, AdaptivePercent: config.AdaptivePercent,
	}
	if config.Indexers != nil {
		indexed.Indexers = *config.Indexers
	}
	return match.NewIndexes(indexed)
}

// Ready implements running.
func (e *engine) Ready() bool { return e.condition.load().served() }

// Wait implements running.
func (e *engine) Wait(ctx context.Context) error {
	_, err := e.condition.await(ctx, (*condition).served)
	if ctx.Err() != nil && err != nil {
		return ctx.Err()
	}
	return err
}

// Done implements running.
func (e *engine) Done() <-chan struct{} { return e.ctx.Done() }

// start starts the engine's goroutines, which end with e.ctx. stop awaits them.
func (e *engine) start() {
	e.metrics.DeclareIndexes(e.indexes.Names()...)
	e.metrics.FollowSilence(e.condition.silence)
	e.journal.outages.note()
	reflector := cache.NewReflectorWithOptions(e.storage.source, nil, &feed{engine: e, builder: newElementBuilder(e.base)}, cache.ReflectorOptions{
		Name:            "watchcache " + e.config.GroupResource.String(),
		TypeDescription: e.config.GroupResource.String(),
		Clock:           e.config.Clock,
	})
	reflector.WatchListPageSize = listPageSize
	for _, run := range []func(context.Context){
		func(ctx context.Context) { e.storage.reflect(ctx, reflector) },
		e.fanout.Run, e.progress.Run, e.comparer.run,
	} {
		e.tasks.Run(func() { run(e.ctx) })
	}
}

// Warn implements dispatch.Owner.
func (e *engine) Warn(kind, message string, err error, remedy string) {
	e.journal.warn(kind, message, err, remedy)
}

// Unverified implements dispatch.Owner.
func (e *engine) Unverified() bool { return e.condition.load().integrity != verified }

// EndRevision implements dispatch.Owner.
func (e *engine) EndRevision() { e.progress.EndNow() }

// EverySecond implements dispatch.Owner.
func (e *engine) EverySecond() {
	e.encodings.Age(e.time.Now())
	e.measure()
	if err := e.failedIndex.Swap(nil); err != nil {
		e.journal.warn("index", "An index function failed. The watch cache files the object under every value of the index: reads by it stay correct, but get slower", *err,
			"look at this function of the resource's indexers, or at the object that it fails for")
	}
	e.runExclusive(&e.adapting, e.adapt)
	if e.storage.mustProbe() {
		e.runExclusive(&e.storage.probing, e.storage.probe)
	}
	if e.condition.load().needsTick() {
		e.condition.handle(event{kind: tick})
	}
}

// runExclusive runs f, too slow for the dispatcher, in a goroutine unless its last run is active.
func (e *engine) runExclusive(running *atomic.Bool, f func()) {
	if running.CompareAndSwap(false, true) {
		e.tasks.Run(func() {
			defer running.Store(false)
			f()
		})
	}
}

// adapt builds and drops adaptive indexes. It also adds to the shipped cacher's metrics, one call
// per LIST.
func (e *engine) adapt() {
	e.metrics.PassOn()
	for _, change := range e.indexes.Adapt(e.state, e.time.Now()) {
		e.journal.index(change)
	}
	e.metrics.SetIndexes(len(e.indexes.Adaptive()))
}

// measure sets the metrics of sizes, after each list and once a second.
func (e *engine) measure() {
	stats := e.state.Stats()
	e.metrics.SetObjects(stats.Objects)
	e.metrics.SetBytes(metrics.BytesObjects, stats.ObjectBytes)
	e.limitEncodings(stats.ObjectBytes)
	e.metrics.SetBytes(metrics.BytesEncodings, e.encodingBytes())
	e.metrics.SetBytes(metrics.BytesWindow, stats.WindowBytes)
	e.metrics.SetOldestResourceVersion(stats.OldestRV)
	e.metrics.SetBytes(metrics.BytesIndexes, stats.IndexBytes+stats.FloorBytes+e.fanout.PostingsBytes())
	e.metrics.SetStorageResourceVersion(max(e.versions.Highest(), stats.RV))
	e.metrics.SetWindow(stats.WindowEvents, e.time.Now()-time.Duration(stats.Since))
	e.metrics.SetWindowSlots(stats.WindowCapacity)
}

const (
	// encodingPercent limits serializations in percent of the memory of the objects, and
	// maxFollowing in bytes, unless Config.EncodingBytes is set.
	encodingPercent = 15
	maxFollowing    = 1 << 30
)

// encodingLimit returns the limit of serializations, given the memory of the objects.
func encodingLimit(config *Config, objects int64) int64 {
	if !config.encodingFollows {
		return config.EncodingBytes
	}
	return max(config.EncodingBytes, min(objects/100*encodingPercent, maxFollowing))
}

// limitEncodings gives events and lists half the limit each, and the other's unused part.
func (e *engine) limitEncodings(objects int64) {
	all := encodingLimit(&e.config, objects)
	events := max(all/2, all-e.encodings.Bytes())
	lists := max(all/2, all-e.fanout.EncodingBytes())
	if all < 0 {
		events = all
		lists = all
	}
	e.fanout.LimitEncodings(events)
	e.encodings.SetLimit(lists)
}

func (e *engine) encodingBytes() int64 { return e.fanout.EncodingBytes() + e.encodings.Bytes() }

// stop stops the engine and awaits its goroutines. It is idempotent and safe for concurrent use.
func (e *engine) stop() {
	e.condition.handle(event{kind: stop})
	e.cancel()
	e.fanout.Close()
	e.tasks.Close()
	e.storage.source.Close()
	e.journal.outages.note()
}

// indexFailed records an indexer's failure, for EverySecond to log. Caller holds the state's lock.
func (e *engine) indexFailed(name, key string, err error) {
	if e.failedIndex.Load() == nil {
		err = faultf(keyFaultf(err, "%q", key), "the index %q", name)
		e.failedIndex.CompareAndSwap(nil, &err)
	}
}
