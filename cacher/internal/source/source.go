// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

// Config configures a Source.
type Config struct {
	// Storage is watched and listed under Prefix. NewList makes an empty list.
	Storage storage.Interface
	Prefix  string
	NewList func() runtime.Object
	// NewFill makes a Fill for each list or stream of the storage's whole state. TakeFill
	// returns it once the Reflector has listed.
	NewFill func() Fill
	// Resource names the resource. It is part of the identifiers of the storage's
	// watches.
	Resource string
	Clock    clock.WithTicker
	// Tasks counts the goroutines. Close must be called after Tasks was closed.
	Tasks *tasks.Group
	// ListOnly has the state listed: the storage is not asked to begin a watch with
	// its state.
	ListOnly bool
	// ReportDelay is how long a slow storage takes to report progress; 0: it is not slow.
	ReportDelay time.Duration
	// Begins is called when the storage begins to be listed, or to stream its
	// state.
	Begins func()
	// Relists is called when the storage is about to be listed again because it
	// can't be watched any further, with the reason.
	Relists func(metrics.RelistCause)
	// Broke is called with the error of each storage watch that ended without being
	// stopped, StaysBroken with that of one that could not be opened again for some time,
	// and Undeliverable with an error that comes again and again instead of an event. The
	// errors may quote objects.
	Broke, StaysBroken, Undeliverable func(error)
}

// Source is the wrapped storage as a ListerWatcher over the whole resource, for
// client-go's Reflector. Its watches outlive the storage's: the Reflector, which would
// list again, sees only errors that prevent a broken one from being resumed.
type Source struct {
	config Config
	// id identifies this cache's watches, and opened counts them.
	id     string
	opened atomic.Int64
	// stream is the Reflector's last watch, nil before the first.
	stream atomic.Pointer[stream]
	// current is the storage's watch that is open, nil if none is.
	current atomic.Pointer[Watch]
	// ahead is the watch opened before the list that is under way, nil if there is none.
	ahead atomic.Pointer[Watch]
	// unstreamed: the storage was found to take no notice when it is asked for
	// its state. listNext: it could not stream it the last time.
	unstreamed, listNext atomic.Bool
	// page is the size of the largest pages that fit a message, 0 if all did.
	page atomic.Int64
	// relistOrder carries the order to give up the current watch and list again,
	// answered that the storage has answered a version request.
	relistOrder chan struct{}
	answered    chan struct{}

	mu struct {
		sync.Mutex
		filled Fill
	}
}

// New returns a Source that does nothing until the Reflector calls it.
func New(config Config) *Source {
	return &Source{
		config:      config,
		id:          config.Resource + "/" + strconv.FormatInt(sources.Add(1), 10),
		relistOrder: make(chan struct{}, 1), answered: make(chan struct{}, 1),
	}
}

// sources numbers the sources in the process.
var sources atomic.Int64

var _ cache.ListerWatcherWithContext = (*Source)(nil)

// Relist makes the Reflector list again, whatever it is doing. It never
// blocks.
func (s *Source) Relist() {
	select {
	case s.relistOrder <- struct{}{}:
	default: // an order is waiting already
	}
}

// answersPatience is how long a storage may take to show that it is there.
const answersPatience = 2 * time.Second

// Version returns the storage's version; false if it does not come soon.
func (s *Source) Version(ctx context.Context) (uint64, bool) {
	ctx, cancel := context.WithTimeout(ctx, answersPatience)
	defer cancel()
	rv, err := s.config.Storage.GetCurrentResourceVersion(ctx)
	return rv, err == nil
}

// HasAnswered notes that the storage has answered a version request, so that a
// broken watch is opened again soon. It never blocks.
func (s *Source) HasAnswered() {
	select {
	case s.answered <- struct{}{}:
	default:
	}
}

// begins notes that the Reflector begins to list, or to stream the state. That fulfils
// earlier orders to list, and not later ones.
func (s *Source) begins() {
	select {
	case <-s.relistOrder:
	default:
	}
	s.config.Begins()
	s.TakeFill() // one that the Reflector has not taken is dropped
}

// ListWithContext lists the storage into a Fill, at its latest version, whatever
// version the Reflector asks for, and returns a list without items.
func (s *Source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// The Reflector does not await its list calls; Config.Tasks does.
	if !s.config.Tasks.Begin() {
		return nil, tasks.ErrStopped
	}
	defer s.config.Tasks.End()
	if options.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		// client-go can compare a streamed state with a list of it, for tests
		// (KUBE_WATCHLIST_INCONSISTENCY_DETECTOR). The Reflector has nothing to compare.
		return s.emptyList(options.ResourceVersion)
	}
	list, err := s.list(ctx, options.Limit)
	if err != nil {
		return nil, opaque{err}
	}
	return list, nil
}

// errNotStreamed makes the Reflector list.
var errNotStreamed = errors.New("the storage's state is listed and not streamed")

// WatchWithContext watches the storage, from a version or with the initial
// state first.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	stream := newStream(s, ctx, options)
	// The Reflector does not stop a watch whose initial events it could not take.
	if former := s.stream.Swap(stream); former != nil {
		former.cancel()
	}
	first, err := stream.first(options)
	if err != nil {
		stream.cancel()
		if err != errNotStreamed && ctx.Err() == nil {
			s.config.Broke(err)
		}
		return nil, opaque{err}
	}
	if !s.config.Tasks.Run(func() { stream.run(first) }) {
		first.end()
		stream.cancel()
		return nil, tasks.ErrStopped
	}
	return stream, nil
}

// first returns the first of the stream's watches.
func (s *stream) first(options metav1.ListOptions) (*Watch, error) {
	if s.initial {
		s.source.dropAhead()
		if s.source.unstreamed.Load() || s.source.listNext.Load() {
			return nil, errNotStreamed
		}
		s.source.begins()
		s.fill = s.source.config.NewFill()
		return s.source.open(s.ctx, options)
	}
	listed, _ := strconv.ParseUint(options.ResourceVersion, 10, 64)
	s.furthest = listed
	if ahead := s.source.takeAhead(options.ResourceVersion); ahead != nil {
		s.skip = listed
		return ahead, nil
	}
	return s.source.open(s.ctx, options)
}

// notStreamed notes that the storage has not streamed its state: it is not asked to the
// next time, and never again if it takes no notice of being asked.
func (s *Source) notStreamed(failure watch.Event) {
	if failure == ignored || failure == endless {
		s.unstreamed.Store(true)
	}
	s.listNext.Store(true)
}

// List and Watch make source a cache.ListerWatcher; the Reflector uses the
// methods with a context.
func (s *Source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (s *Source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported reports to client-go whether the storage can't
// begin a watch with the initial state.
func (s *Source) IsWatchListSemanticsUnSupported() bool {
	return s.config.ListOnly || watchlist.DoesClientNotSupportWatchListSemantics(s.config.Storage)
}

// relist ends the Reflector's watch so that it lists again, unstreamed its request
// for the state. The Reflector logs them: they have fixed texts.
var (
	relist     = Failure(apierrors.NewResourceExpired("the watch cache lists again"))
	unstreamed = Failure(errors.New("the initial state was not streamed"))
)

// opaque is an error of the storage as the Reflector, which logs errors, gets it: its
// text may quote an object.
type opaque struct{ error }

func (opaque) Error() string   { return "the storage has failed; the watch cache logs how" }
func (o opaque) Unwrap() error { return o.error }

// Revealed returns the storage's error that the Reflector was given.
func Revealed(err error) error {
	var hidden opaque
	if errors.As(err, &hidden) {
		return hidden.error
	}
	return err
}
