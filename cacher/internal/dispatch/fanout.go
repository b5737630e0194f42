// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/match"
	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
	"github.com/kube-watchcache/watchcache/cacher/status"
	"github.com/kube-watchcache/watchcache/internal/rounds"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/watchcache"
)

// Owner is the cache that a Fanout belongs to.
type Owner interface {
	// Warn logs an error that a person must repair. The caller holds no lock.
	Warn(kind, message string, err error, remedy string)
	// Unverified reports whether the state may be wrong. No watcher then gets a bookmark from
	// it, or the end of its initial events.
	Unverified() bool
	// EndRevision requests the end of the current revision from storage.
	EndRevision()
	// EverySecond is called once a second, after the window was aged.
	EverySecond()
}

// EventKeeper keeps serializations of events for the server.
type EventKeeper interface {
	// Keep keeps an event until drop. add receives the change in bytes when the server
	// needs more or less memory for it.
	Keep(event []byte, add func(bytes int64)) (drop func())
}

// Config configures a Fanout. All fields are required.
type Config struct {
	Owner
	Events  EventKeeper
	State   *watchcache.State
	Indexes *match.Indexes
	Clock   clock.WithTicker
	// Time is the timeline of Event.Received.
	Time    timeline.Timeline
	Metrics *metrics.Resource
	// Tasks counts the goroutines. Done is closed when they must end.
	Tasks *tasks.Group
	Done  <-chan struct{}

	Versioner storage.Versioner
	// NewObject returns an empty object of the resource, for bookmarks.
	NewObject func() runtime.Object

	// The limits are those of cacher.Config.
	WatchBuffer                      int
	DispatchBudget, BookmarkInterval time.Duration
	// InitialEventsTimeout is the maximum time without progress of a watcher's initial events.
	// InitialEventsBytes limits the memory held by all initial events.
	InitialEventsTimeout time.Duration
	InitialEventsBytes   int64
}

// Fanout holds the watchers of one state machine. It is safe for concurrent use.
type Fanout struct {
	Config
	registry   *registry
	supervisor *supervisor
	postings   *match.Postings
	encodings  *keptEncodings
	// park is parkWatcher, except in tests.
	park func(w *watcher, position watchcache.Position, unsent uint64)

	wake chan struct{}
	// failing is the error that ends level watchers, or nil.
	failing atomic.Pointer[storageFailure]
	// everyone receives the requests of Bookmark. Run closes the received channel after sending the
	// bookmarks.
	everyone chan chan struct{}
	// bookmarksWait is true if due bookmarks wait for a revision's end.
	bookmarksWait atomic.Bool

	// Owned by the dispatcher, i.e. the goroutine of Run.

	cursor watchcache.Position
	// last is the resourceVersion of the last dispatched event, through the last complete one, i.e.
	// below last within a revision.
	last, through uint64
	// budget is the time left for slow watchers at the last refill.
	budget   time.Duration
	refilled time.Time
	// limits decide which rounds have several events. matched is the last round's mean number of
	// watchers per event.
	limits  rounds.Limits
	matched int

	// Scratch memory, to avoid allocations per event. round is dropped once a second.
	round  *round
	read   [batch]*watchcache.Event
	marked []*watcher
}

// New returns a Fanout without watchers. Nothing is dispatched before Run.
func New(config Config) *Fanout {
	f := &Fanout{
		Config: config, postings: match.NewPostings(config.Indexes, config.State),
		encodings: newKeptEncodings(config.Events, config.Metrics),
		wake:      make(chan struct{}, 1), everyone: make(chan chan struct{}),
		limits: rounds.Current(),
	}
	f.limits.Events = min(f.limits.Events, config.WatchBuffer)
	f.registry = newRegistry(&f.Config)
	f.supervisor = &supervisor{Fanout: f}
	f.supervisor.mu.held, f.supervisor.mu.newcomers = nothing, nothing
	f.park = f.parkWatcher
	return f
}

// Start is where a watch begins.
type Start struct {
	// Snapshot holds the objects of the initial events. Nil means none.
	Snapshot *watchcache.Snapshot
	// Position is that of the first event to evaluate. The client has the events up to
	// resourceVersion After.
	Position watchcache.Position
	After    uint64
	// Shown is the resourceVersion that the client has or receives first, and the lower bound of
	// bookmarks. More events at Shown may follow.
	Shown uint64
}

// Request is a request for a watch.
type Request struct {
	Query match.Query
	Start Start
	// Bookmarks requests periodic bookmarks, and one shortly before the context's deadline.
	Bookmarks bool
	Client    status.Client
	// Encoder is nil if initial events are private copies of the objects.
	Encoder WatchEncoder
	// InitialEventsEnd requests a bookmark after the initial events, if any (KEP-3157).
	InitialEventsEnd bool
}

// Open opens a watch until its Stop, the end of ctx, or Close. It returns false after Close.
func (f *Fanout) Open(ctx context.Context, r Request) (watch.Interface, bool) {
	w := &watcher{
		registry:  f.registry,
		result:    make(chan watch.Event, f.WatchBuffer),
		after:     r.Start.After,
		shown:     r.Start.Shown,
		bookmarks: r.Bookmarks,
		started:   f.Clock.Now(),
		client:    unique.Make(r.Client),
	}
	if deadline, ok := ctx.Deadline(); ok {
		w.deadline = max(1, f.Time.At(deadline))
	}
	replayer := f.newReplayer(w, r.Start.Position)
	if snapshot := r.Start.Snapshot; snapshot != nil {
		replayer.snapshot, replayer.mark = snapshot, snapshot.Mark()
		replayer.initial.Store(true)
		w.encoder = r.Encoder
	}
	if !f.registry.open(ctx, replayer, r.Query) {
		return nil, false
	}
	f.supervisor.hold(replayer)
	marksEnd := r.InitialEventsEnd // the goroutine must not keep r alive
	if !f.Tasks.Run(func() { replayer.start(marksEnd, func() { flowcontrol.WatchInitialized(ctx) }) }) {
		f.registry.end(w, metrics.EndShutdown)
		return nil, false
	}
	return w, true
}

// Close ends all watchers, rejects new ones, and drops kept serializations. The owner of
// Config.Tasks waits for the goroutines.
func (f *Fanout) Close() {
	f.encodings.close()
	f.registry.mu.Lock()
	f.registry.mu.closed = true
	all := slices.Collect(maps.Values(f.registry.mu.all))
	f.registry.mu.Unlock()
	for _, w := range all {
		f.registry.end(w, metrics.EndShutdown)
	}
}

const takenPause = 10 * time.Millisecond

// Bookmark sends a bookmark at the last dispatched resourceVersion to each level watcher that
// requested bookmarks. It returns when clients have drained their channels, or ctx is done.
func (f *Fanout) Bookmark(ctx context.Context) error {
	sent := make(chan struct{})
	select {
	case f.everyone <- sent:
	case <-ctx.Done():
		return ctx.Err()
	case <-f.Done:
		return nil
	}
	<-sent
	for f.registry.unread() > 0 {
		select {
		case <-f.Clock.After(takenPause):
		case <-ctx.Done():
			return ctx.Err()
		case <-f.Done:
			return nil
		}
	}
	return nil
}

// Watched reports whether there is a watch, or an ended one whose client has yet to read the error.
func (f *Fanout) Watched() bool {
	f.registry.mu.Lock()
	defer f.registry.mu.Unlock()
	return len(f.registry.mu.all) > 0
}

// LimitEncodings limits the size in bytes of kept serializations of events.
func (f *Fanout) LimitEncodings(bytes int64) { f.encodings.setLimit(bytes) }

// EncodingBytes returns the size of the kept serializations.
func (f *Fanout) EncodingBytes() int64 { return f.encodings.bytes.Load() }

// PostingsBytes estimates the size of the index of the window's events for resumed watchers.
func (f *Fanout) PostingsBytes() int64 { return f.postings.Bytes() }
