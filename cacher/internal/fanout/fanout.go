// SPDX-License-Identifier: Apache-2.0

package fanout

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
	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/cacher/internal/wire"
	"github.com/kube-watchcache/watchcache/internal/polling"
	"github.com/kube-watchcache/watchcache/internal/rounds"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Config is what a Fanout works with. All fields but Events are required.
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
	// Tasks counts the goroutines; Done is closed when they are to end.
	Tasks *tasks.Group
	Done  <-chan struct{}

	Versioner storage.Versioner
	// NewObject returns an empty object of the resource, for bookmarks.
	NewObject func() runtime.Object

	// The limits are those of the cacher's own configuration.
	WatchBuffer                         int
	InitialEventsBytes                  int64
	DispatchBudget, BookmarkInterval    time.Duration
	ParkedTimeout, InitialEventsTimeout time.Duration

	// Encodings is what the serializations of events may take.
	Encodings *bytebudget.Share
	// Events shares compressed events with the server, nil if it does not.
	Events *wire.Events
	// Chunks keeps the serializations of initial events.
	Chunks *wire.Store

	// EndRevision asks storage for the end of the revision that is under way.
	EndRevision func()
	// Measure sets the metrics of the state's sizes. Measure is called once a
	// second, after the window was aged.
	Measure func()

	// Wanted reports whether a watcher that is parked, or ends for the reason, is
	// to be told of, and Report is then called, by the goroutine that parks or ends
	// it. Both are called with no lock held.
	Wanted func(metrics.EndReason) bool
	Report func(Report)
}

// Fanout has the watchers of one state machine. Its methods are safe for
// concurrent use.
type Fanout struct {
	registry   *registry
	dispatcher *dispatcher
	replays    *replays
	clock      clock.WithTicker
	time       timeline.Timeline
	chunks     *wire.Store
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
		parked: config.ParkedTimeout, initial: config.InitialEventsTimeout, bytes: config.InitialEventsBytes,
	}
	supervisor.idle.Store(true)
	lookback := newLookback(config.Indexes, config.State)
	poller := &poller{
		registry: registry, tasks: config.Tasks, clock: config.Clock, time: config.Time, limits: polling.Current(), woken: make(chan struct{}, 1),
	}
	replays := &replays{
		state: config.State, indexes: config.Indexes, lookback: lookback, registry: registry, supervisor: supervisor, poller: poller, convert: convert,
		metrics: config.Metrics, tasks: config.Tasks, warn: config.Warn,
	}
	limits := rounds.Current()
	limits.Events = min(limits.Events, config.WatchBuffer)
	f := &Fanout{
		registry: registry, replays: replays,
		dispatcher: &dispatcher{
			state: config.State, registry: registry, convert: convert, clock: config.Clock, time: config.Time,
			metrics: config.Metrics, warn: config.Warn, park: replays.park, endNow: config.EndRevision,
			measure: config.Measure, supervise: func() { supervisor.tick(); lookback.trim() }, wake: make(chan struct{}, 1),
			budget: newTimeBudget(config.DispatchBudget, config.Clock.Now()), limits: limits,
		},
		clock: config.Clock, time: config.Time, chunks: config.Chunks, buffer: config.WatchBuffer, done: config.Done,
	}
	registry.tell = func(r report) {
		if config.Wanted(r.reason) {
			config.Report(f.described(r))
		}
	}
	return f
}

// Run is the dispatcher. The caller starts it in a goroutine, once; it returns
// when the context is done.
func (f *Fanout) Run(ctx context.Context) { f.dispatcher.dispatchEvents(ctx) }

// Start is where a watch begins.
type Start struct {
	// Snapshot is what the initial events are made of, nil if there are none.
	Snapshot *watchcache.Snapshot
	// Position is that of the first event to look at. Events at or below the
	// resourceVersion After are not for the watch wherever they are, because its
	// client has them from elsewhere; 0 if that can't be.
	Position watchcache.Position
	After    uint64
	// Shown is the resourceVersion that the client knows or is shown first; no
	// bookmark is below it. After Shown, more events of the same revision may come.
	Shown uint64
}

// Request is a watch that is to be opened.
type Request struct {
	Query match.Query
	Start Start
	// Bookmarks are sent from time to time, and shortly before the deadline of
	// the request's context.
	Bookmarks bool
	// Client is whose watch it is, for people.
	Client Client
	// InitialEventsEnd: the end of the initial events, if there are any, is
	// marked by a bookmark (KEP-3157).
	InitialEventsEnd bool
	// Initialized is called once all initial events are in the watch's channel, or
	// the watch has ended before, from a goroutine of the watch.
	Initialized func(InitialEvents)
}

// InitialEvents tells how the initial events of a watch were sent. The
// description is zero for a watch that has none.
type InitialEvents struct {
	// Index is the name of the index that they were read from, "" if it was a range
	// of keys.
	Index string
	// Evaluated objects were looked at, Sent events were put into the channel.
	Evaluated, Sent int
}

// Open opens a watch, which ends with its Stop, with the context or with the
// Fanout. Open returns false once the Fanout is closed.
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
	if r.Start.Snapshot != nil {
		w.initial = f.chunks.Initial(ctx)
	}
	if deadline, ok := ctx.Deadline(); ok {
		w.deadline = max(1, f.time.At(deadline))
	}
	quit, ok := f.registry.add(w, r.Query)
	if !ok {
		return nil, false
	}
	if r.Start.Snapshot == nil && f.replays.state.Skipped(w.after) {
		// The version was skipped since the position was given out, and Skipped may
		// not have seen the watcher.
		f.registry.end(w, metrics.EndRelist)
	}
	replayer := f.replays.newReplayer(w, quit, r.Start.Position)
	replayer.begin(r.Start.Snapshot)
	f.registry.follow(ctx, w, replayer)
	f.replays.supervisor.add(replayer) // what ends the watcher takes it out again
	marksEnd := r.Start.Snapshot != nil && r.InitialEventsEnd
	if !f.replays.tasks.Run(func() {
		replayer.start(marksEnd, func(initial InitialEvents) {
			flowcontrol.WatchInitialized(ctx)
			r.Initialized(initial)
		})
	}) {
		f.registry.end(w, metrics.EndShutdown)
		f.replays.supervisor.remove(replayer)
		return nil, false
	}
	if r.Start.Snapshot != nil {
		return newInitialWatch(w, f.replays.tasks, f.done), true
	}
	return w, true
}

// WakeUp tells the dispatcher that there are new events. WakeUp never blocks.
func (f *Fanout) WakeUp() { f.dispatcher.wakeUp() }

// RevisionEnds tells the dispatcher that the events so far are complete.
// RevisionEnds never blocks.
func (f *Fanout) RevisionEnds() { f.dispatcher.revisionEnds() }

// Fail ends the watchers, each once it is live and has everything before it,
// with the error that the storage gives instead of the next event, until Follow
// is called. Fail never blocks.
func (f *Fanout) Fail(failure watch.Event) { f.dispatcher.fail(failure) }

// Follow ends what Fail began: the state follows the storage again. Watchers
// that were not told yet are told.
func (f *Fanout) Follow() { f.dispatcher.follow() }

// Skipped ends the watchers that have begun after a resourceVersion strictly between
// the two: they were ahead of the state, which has not seen what is between them, or
// has missed a part of it.
// The differences that the state was told of instead are none to what the clients
// have: an object may be missing in both states that the client has. The clients
// can't resume there either, and list. The state must refuse to begin at these
// resourceVersions by now.
func (f *Fanout) Skipped(from, to uint64) {
	for _, w := range f.registry.begunBetween(from, to) {
		f.registry.end(w, metrics.EndRelist)
	}
}

// Close ends all watchers and takes no new ones. The goroutines are awaited by
// the owner of Config.Tasks.
func (f *Fanout) Close() {
	f.registry.close()
	f.replays.poller.wakeUp() // nobody is polled any more
}

// takenPause is the time between two looks at whether clients have taken their
// bookmarks.
const takenPause = 10 * time.Millisecond

// Bookmark sends a bookmark to each live watcher that has asked for bookmarks, at the
// resourceVersion up to which everything was dispatched, and returns when the clients
// have taken what was sent to them, or the context is done.
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

// Counts returns how many watchers are live and how many catch up.
func (f *Fanout) Counts() (live, catchingUp int) { return f.registry.counts() }

// Watched reports whether there is a watch, or one that has ended and is still to
// tell its client.
func (f *Fanout) Watched() bool { return f.registry.watched() }

// EncodingBytes returns what is kept of serializations, in bytes.
func (f *Fanout) EncodingBytes() int64 { return f.replays.convert.encodings.bytes() }

// PostingsBytes returns what is kept so that watchers which resume find their
// events in the window, in bytes, as far as that can be estimated.
func (f *Fanout) PostingsBytes() int64 { return f.replays.lookback.bytes.Load() }

// LastState returns an element as it was, at the resourceVersion at which it
// ceased to be.
func (f *Fanout) LastState(e *watchcache.Element, rv uint64) *watchcache.Element {
	return f.replays.convert.lastState(e, rv)
}
