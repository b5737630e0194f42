// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/bytebudget"
	"github.com/kube-watchcache/watchcache/cacher/internal/listcache"
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/rounds"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Config configures a Fanout. All fields but Events are required.
type Config struct {
	// Warn logs an error that a person must mend, with no lock held: see the cacher's
	// warnings.
	Warn    func(kind, message string, err error, remedy string)
	State   *watchcache.State
	Indexes *match.Indexes
	Clock   clock.WithTicker
	// Time is the timeline that the state's events are received on.
	Time    timeline.Timeline
	Metrics *metrics.Resource
	// Tasks counts the goroutines; Done is closed when they must end.
	Tasks *tasks.Group
	Done  <-chan struct{}

	Versioner storage.Versioner
	// NewObject returns an empty object of the resource, for bookmarks.
	NewObject func() runtime.Object

	// The limits are those of the cacher's own configuration.
	WatchBuffer                      int
	DispatchBudget, BookmarkInterval time.Duration
	// InitialEventsTimeout is for how long a watcher may take none of its initial
	// events, InitialEventsBytes the limit of the memory that all of these keep.
	InitialEventsTimeout time.Duration
	InitialEventsBytes   int64

	// Encodings is the budget for the serializations of events.
	Encodings *bytebudget.Share
	// Events shares compressed events with the server, nil if it does not.
	Events *listcache.Events
	// Chunks keeps the serializations of initial events.
	Chunks *listcache.Store

	// EndRevision asks storage for the end of the revision that is under way.
	EndRevision func()
	// Doubtful reports whether the state is known to be wrong: no watcher then gets a
	// bookmark, or the end of its initial events, from it.
	Doubtful func() bool
	// Measure is called once a second, after the window was aged. It does the engine's
	// work of every second, among it the metrics of the state's sizes.
	Measure func()
}

// Fanout has the watchers of one state machine. Its methods are safe for
// concurrent use.
type Fanout struct {
	registry   *registry
	dispatcher *dispatcher
	replays    *replays
	clock      clock.WithTicker
	time       timeline.Timeline
	chunks     *listcache.Store
	buffer     int
	done       <-chan struct{}
}

// New returns a Fanout without watchers. Nothing is dispatched before Run.
func New(config Config) *Fanout {
	convert := &converter{
		versioner: config.Versioner, newObject: config.NewObject, warn: config.Warn,
		encodings: newEncodings(config.Encodings, config.Events, config.Metrics),
	}
	registry := newRegistry(config.Metrics, config.Clock, config.Time, config.Indexes, config.BookmarkInterval)
	supervisor := &supervisor{
		state: config.State, registry: registry, time: config.Time, metrics: config.Metrics, tasks: config.Tasks,
		initial: config.InitialEventsTimeout, bytes: config.InitialEventsBytes,
	}
	supervisor.idle.Store(true)
	lookback := newLookback(config.Indexes, config.State)
	replays := &replays{
		state: config.State, indexes: config.Indexes, lookback: lookback, registry: registry, supervisor: supervisor, convert: convert,
		metrics: config.Metrics, tasks: config.Tasks, warn: config.Warn, doubtful: config.Doubtful,
	}
	limits := rounds.Current()
	limits.Events = min(limits.Events, config.WatchBuffer)
	return &Fanout{
		registry: registry, replays: replays,
		dispatcher: &dispatcher{
			state: config.State, registry: registry, convert: convert, clock: config.Clock, time: config.Time,
			metrics: config.Metrics, warn: config.Warn, park: replays.park, failLater: replays.failLater, endNow: config.EndRevision,
			doubtful: config.Doubtful,
			measure:  config.Measure, supervise: func() { supervisor.tick(); lookback.trim() }, wake: make(chan struct{}, 1),
			budget: newTimeBudget(config.DispatchBudget, config.Clock.Now()), limits: limits,
		},
		clock: config.Clock, time: config.Time, chunks: config.Chunks, buffer: config.WatchBuffer, done: config.Done,
	}
}

// Run is the dispatcher. The caller starts it in a goroutine, once; it returns
// when the context is done.
func (f *Fanout) Run(ctx context.Context) { f.dispatcher.dispatchEvents(ctx) }

// Start is where a watch begins.
type Start struct {
	// Snapshot has the objects of the initial events, nil if there are none.
	Snapshot *watchcache.Snapshot
	// Position is that of the first event to look at. Events at or below the
	// resourceVersion After are not for the watch, because its client has them.
	Position watchcache.Position
	After    uint64
	// Shown is the resourceVersion that the client knows or is shown first; no
	// bookmark is below it. After Shown, more events of the same revision may come.
	Shown uint64
}

// Request is a request for a watch.
type Request struct {
	Query match.Query
	Start Start
	// Bookmarks are sent from time to time, and shortly before the deadline of
	// the request's context.
	Bookmarks bool
	// Client is whose watch it is, for people.
	Client status.Client
	// Shared: initial events may share their serializations, as later events do.
	// Otherwise they are private copies of the objects.
	Shared bool
	// InitialEventsEnd: the end of the initial events, if there are any, is
	// marked by a bookmark (KEP-3157).
	InitialEventsEnd bool
}

// Open opens a watch, which ends with its Stop, with the context or with the
// Fanout. It returns false once the Fanout is closed.
func (f *Fanout) Open(ctx context.Context, r Request) (watch.Interface, bool) {
	w := &watcher{
		registry:  f.registry,
		result:    make(chan watch.Event, f.buffer),
		after:     r.Start.After,
		shown:     r.Start.Shown,
		bookmarks: r.Bookmarks,
		began:     f.time.Now(),
		started:   f.clock.Now(),
		client:    unique.Make(r.Client),
	}
	if r.Start.Snapshot != nil && r.Shared {
		w.initial = f.chunks.Initial(ctx)
	}
	if deadline, ok := ctx.Deadline(); ok {
		w.deadline = max(1, f.time.At(deadline))
	}
	quit, ok := f.registry.add(w, r.Query)
	if !ok {
		return nil, false
	}
	replayer := f.replays.newReplayer(w, quit, r.Start.Position)
	replayer.begin(r.Start.Snapshot)
	f.registry.follow(ctx, w, replayer)
	f.replays.supervisor.add(replayer) // what ends the watcher takes it out again
	marksEnd := r.Start.Snapshot != nil && r.InitialEventsEnd
	if !f.replays.tasks.Run(func() {
		replayer.start(marksEnd, func() { flowcontrol.WatchInitialized(ctx) })
	}) {
		f.registry.end(w, metrics.EndShutdown)
		f.replays.supervisor.remove(replayer)
		return nil, false
	}
	return w, true
}

// WakeUp wakes the dispatcher up for new events. It never blocks.
func (f *Fanout) WakeUp() { f.dispatcher.wakeUp() }

// RevisionEnds notifies the dispatcher that the events so far are complete. It never
// blocks.
func (f *Fanout) RevisionEnds() { f.dispatcher.revisionEnds() }

// Fail ends the watchers, each once it is live and has everything before it,
// with the error that the storage gives instead of the next event, until Follow
// is called. It never blocks.
func (f *Fanout) Fail(failure watch.Event) { f.dispatcher.fail(failure) }

// Follow undoes Fail: the state follows the storage again. An error that was not sent
// yet still is.
func (f *Fanout) Follow() { f.dispatcher.follow() }

// Close ends all watchers and takes no new ones. The goroutines are awaited by
// the owner of Config.Tasks.
func (f *Fanout) Close() { f.registry.close() }

// takenPause is the time between two looks at whether clients have taken their
// bookmarks.
const takenPause = 10 * time.Millisecond

// Bookmark sends a bookmark at the last fully dispatched resourceVersion to each live
// watcher that has asked for bookmarks. It returns when the clients have drained their
// channels, or the context is done.
func (f *Fanout) Bookmark(ctx context.Context) error {
	sent := make(chan struct{})
	for !f.dispatcher.everyone.CompareAndSwap(nil, &sent) {
		if other := f.dispatcher.everyone.Load(); other != nil {
			sent = *other
			break
		}
	}
	f.dispatcher.wakeUp()
	select {
	case <-sent:
	case <-ctx.Done():
		return ctx.Err()
	case <-f.done:
		return nil
	}
	for f.registry.unread() > 0 {
		select {
		case <-f.clock.After(takenPause):
		case <-ctx.Done():
			return ctx.Err()
		case <-f.done:
			return nil
		}
	}
	return nil
}

// Watched reports whether there is a watch, or one that has ended with an error that its
// client has not read yet.
func (f *Fanout) Watched() bool { return f.registry.watched() }

// EncodingBytes returns the size of the kept serializations.
func (f *Fanout) EncodingBytes() int64 { return f.replays.convert.encodings.bytes() }

// PostingsBytes estimates the size of the postings by which resumed watchers find their
// events in the window.
func (f *Fanout) PostingsBytes() int64 { return f.replays.lookback.bytes.Load() }
