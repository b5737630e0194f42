// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

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

// engine is a running cache: the state, and the parts that fill it from storage, serve reads and
// feed watchers. The parts have locks and goroutines; the engine has neither.
type engine struct {
	wrapped
	config  Config
	indexes *match.Indexes
	metrics *metrics.Resource
	log     klog.Logger

	time      timeline.Timeline
	state     *watchcache.State
	kept      func(rv uint64) bool // state.HasSnapshot, allocated once
	condition *conditionHolder
	reads     boundedReads
	versions  *freshness.VersionRequests
	waiting   *freshness.WaitingReads
	admission *freshness.Admission
	progress  *freshness.ProgressRequester
	fanout    *dispatch.Fanout
	encodings EncodingStore // of Config.Lists
	source    *source.Source
	errors    *errorLog // the Cacher's
	// compareNow wakes the consistency checker.
	compareNow chan struct{}
	// failedIndex is an indexer's first failure in this second, progressFault that of the last
	// progress request.
	failedIndex, progressFault atomic.Pointer[error]
	// adapting and probing are true while adapt or probe run.
	adapting, probing atomic.Bool
	// rvSeenAt is when storage last reported its resourceVersion, on the timeline.
	rvSeenAt atomic.Int64
	// probedAt is when mustProbe was last true, on the timeline. Owned by the dispatcher goroutine.
	probedAt time.Duration
	backfill backfill
	// listBegan is when the last list of storage began, on the timeline.
	listBegan atomic.Int64

	tasks  tasks.Group
	ctx    context.Context
	cancel context.CancelFunc
}

// assemble wires an engine without starting it.
func assemble(config Config, m *metrics.Resource, errors *errorLog) *engine {
	var reportDelay time.Duration
	if slow, ok := config.Storage.(capability.SlowReporter); ok {
		reportDelay = slow.ReportsWithin()
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &engine{
		wrapped: config.Storage,
		config:  config, metrics: m, log: loggerOf(config.GroupResource), errors: errors, ctx: ctx, cancel: cancel,
		encodings: config.encoder().NewStore(config.GroupResource),
		time:      timeline.New(config.Clock), condition: newConditionHolder(limitsOf(&config)), compareNow: make(chan struct{}, 1),
	}
	e.indexes = indexesOf(&e.config, e.indexFailed)
	e.state = watchcache.New(watchcache.Config{
		History: config.EventsHistoryWindow, WindowBytes: config.WindowBytes, HeldBytes: config.initialBytes,
		CeilingBytes: max(2*config.WindowBytes, minWindowCeiling), MinEvents: minWindowEvents, BackfillEvents: backfillEvents, Indexes: e.indexes.OfState(),
		Floors: e.indexes.Floors(), FloorValues: floorValues,
	})
	e.kept = e.state.HasSnapshot
	e.backfill.ctx, e.backfill.end = context.WithCancel(ctx)
	e.versions = freshness.NewVersionRequests(ctx, config.Clock, &e.tasks, e.metrics, config.FreshnessTimeout,
		freshness.GetTimeout(config.FreshnessTimeout), e.askVersion)
	e.waiting = freshness.NewWaitingReads(config.Clock, config.FreshnessTimeout, e.metrics, e.condition, ctx.Done())
	// Readers wait for FreshnessTimeout before admission, so with this period we always admit a
	// retry.
	e.admission = freshness.NewAdmission(config.Clock, config.MaxFallbackLists, config.FreshnessTimeout)
	e.fanout = dispatch.New(dispatch.Config{
		Warn: e.warn, State: e.state, Indexes: e.indexes,
		Clock: config.Clock, Time: e.time, Metrics: e.metrics, Tasks: &e.tasks, Done: ctx.Done(),
		Versioner: config.Versioner, NewObject: config.NewFunc, KeepEvent: e.encodings.Keep,
		WatchBuffer: config.WatchBuffer, DispatchBudget: config.DispatchBudget, BookmarkInterval: config.BookmarkInterval,
		InitialEventsTimeout: config.initialTimeout, InitialEventsBytes: config.initialBytes,
		Doubtful: e.condition.Unverified, EndRevision: func() { e.progress.EndNow() }, EverySecond: e.everySecond,
	})
	e.limitEncodings(0)
	e.source = source.New(source.Config{
		Storage: config.Storage, Prefix: config.ResourcePrefix, NewList: config.NewListFunc,
		Resource: config.GroupResource.String(), Clock: config.Clock, Tasks: &e.tasks, ReportDelay: reportDelay,
		Owner: e,
	})
	e.progress = freshness.NewProgressRequester(freshness.ProgressConfig{
		Clock: config.Clock, Waiting: e.waiting, Versions: e.versions,
		Storage: e, State: e.state, Silence: e, ReportDelay: reportDelay,
	})
	return e
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
	e.metrics.FollowSilence(e.silence)
	e.noteOutage()
	reflector := cache.NewReflectorWithOptions(e.source, nil, &feed{engine: e, builder: e.newBuilder()}, cache.ReflectorOptions{
		Name:            "watchcache " + e.config.GroupResource.String(),
		TypeDescription: e.config.GroupResource.String(),
		Clock:           e.config.Clock,
	})
	reflector.WatchListPageSize = listPageSize
	for _, run := range []func(context.Context){
		func(ctx context.Context) { e.reflect(ctx, reflector) },
		e.fanout.Run, e.progress.Run, e.followConsistency,
	} {
		e.tasks.Run(func() { run(e.ctx) })
	}
}

// newBuilder returns a builder for one goroutine.
func (e *engine) newBuilder() *elementBuilder {
	return &elementBuilder{config: &e.config, state: e.state, warn: e.warn}
}

// The dispatcher calls everySecond.
func (e *engine) everySecond() {
	e.encodings.Age(e.time.Now())
	e.measure()
	if err := e.failedIndex.Swap(nil); err != nil {
		e.warn("index", "An index function failed. The watch cache files the object under every value of the index: reads by it stay correct, but get slower", *err,
			"look at this function of the resource's indexers, or at the object that it fails for")
	}
	e.runExclusive(&e.adapting, e.adapt)
	if e.mustProbe() {
		e.runExclusive(&e.probing, e.probe)
	}
	if e.condition.load().needsTick() {
		e.handle(event{kind: tick})
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
		e.logIndex(change)
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
	e.handle(event{kind: stop})
	e.cancel()
	e.fanout.Close()
	e.tasks.Close()
	e.source.Close()
	e.noteOutage()
}
