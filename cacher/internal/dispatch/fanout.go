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

// Config configures a Fanout. All fields are required.
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

	// KeepEvent keeps the serialization of an event for the server until drop. add receives
	// the change in bytes when the server needs more or less memory for it.
	KeepEvent func(event []byte, add func(bytes int64)) (drop func())

	// EndRevision asks storage for the end of the revision that is under way.
	EndRevision func()
	// Doubtful reports whether the state is known to be wrong: no watcher then gets a
	// bookmark, or the end of its initial events, from it.
	Doubtful func() bool
	// EverySecond is called once a second, after the window was aged. It does the engine's
	// work of every second, among it the metrics of the state's sizes.
	EverySecond func()
}

// Fanout has the watchers of one state machine. Its methods are safe for
// concurrent use.
type Fanout struct {
	Config
	registry   *registry
	supervisor *supervisor
	postings   *match.Postings
	encodings  *keptEncodings
	// park is parkWatcher, but in tests.
	park func(w *watcher, position watchcache.Position, unsent uint64)

	wake chan struct{}
	// failing is the error that ends watchers that are live, or become so; nil if
	// there is none.
	failing atomic.Pointer[storageFailure]
	// everyone takes the orders of Bookmark. A channel in it is closed once all watchers
	// were sent a bookmark.
	everyone chan chan struct{}
	// bookmarksWait: bookmarks are due, and wait for the end of a revision.
	bookmarksWait atomic.Bool

	// The fields below belong to the dispatcher, the goroutine of Run.

	cursor watchcache.Position
	// last is the resourceVersion of the last dispatched event, and through the one up to
	// which everything was dispatched, below last while more events of its revision may come.
	last, through uint64
	// budget is how long the dispatcher could still wait for watchers when it was refilled.
	budget   time.Duration
	refilled time.Time
	// limits say when rounds have several events; matched is how many watchers the events of
	// the last round were for, on average.
	limits  rounds.Limits
	matched int

	// Scratch, so that an event costs no allocation here. The round is given up once a second.
	round  *round
	read   [batch]*watchcache.Event
	marked []*watcher
}

// New returns a Fanout without watchers. Nothing is dispatched before Run.
func New(config Config) *Fanout {
	f := &Fanout{
		Config: config, postings: match.NewPostings(config.Indexes, config.State),
		encodings: newKeptEncodings(config.KeepEvent, config.Metrics),
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
	// Snapshot has the objects of the initial events, nil if there are none.
	Snapshot *watchcache.Snapshot
	// Position is that of the first event to look at. Events at or below the
	// resourceVersion After are not for the watch, because its client has them.
	Position watchcache.Position
	After    uint64
	// Shown is the resourceVersion that the client knows or is shown first; no
	// bookmark is below it. More events of the revision Shown may come.
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
	// Encoder encodes the initial events; nil: they are private copies of the objects.
	Encoder WatchEncoder
	// InitialEventsEnd: the end of the initial events, if there are any, is
	// marked by a bookmark (KEP-3157).
	InitialEventsEnd bool
}

// Open opens a watch, which ends with its Stop, with the context or with the
// Fanout. It returns false once the Fanout is closed.
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
	marksEnd := r.InitialEventsEnd // so that the goroutine keeps no Request
	if !f.Tasks.Run(func() { replayer.start(marksEnd, func() { flowcontrol.WatchInitialized(ctx) }) }) {
		f.registry.end(w, metrics.EndShutdown)
		return nil, false
	}
	return w, true
}

// Close ends all watchers, takes no new ones, and keeps no serializations. The goroutines are
// awaited by the owner of Config.Tasks.
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

// takenPause is the time between two looks at whether clients have taken their
// bookmarks.
const takenPause = 10 * time.Millisecond

// Bookmark sends a bookmark at the last fully dispatched resourceVersion to each live
// watcher that has asked for bookmarks. It returns when the clients have drained their
// channels, or the context is done.
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

// Watched reports whether there is a watch, or one that has ended with an error that its
// client has not read yet.
func (f *Fanout) Watched() bool {
	f.registry.mu.Lock()
	defer f.registry.mu.Unlock()
	return len(f.registry.mu.all) > 0
}

// LimitEncodings sets how many bytes the serializations of events may take.
func (f *Fanout) LimitEncodings(bytes int64) { f.encodings.setLimit(bytes) }

// EncodingBytes returns how many bytes they take.
func (f *Fanout) EncodingBytes() int64 { return f.encodings.bytes.Load() }

// PostingsBytes estimates the size of the postings by which resumed watchers find their
// events in the window.
func (f *Fanout) PostingsBytes() int64 { return f.postings.Bytes() }
