// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

// Config configures a Source.
type Config struct {
	// The Source lists and watches Storage under Prefix. NewList returns an empty list.
	Storage storage.Interface
	Prefix  string
	NewList func() runtime.Object
	// Resource is part of the storage watches' identifiers.
	Resource string
	Clock    clock.WithTicker
	// Tasks counts the goroutines. Close it before the Source.
	Tasks *tasks.Group
	// ReportDelay is the time that a slow storage takes to report progress, or 0.
	ReportDelay time.Duration
	Owner       Owner
}

// Owner observes a Source. Errors passed to it may quote objects. It must not block.
type Owner interface {
	// ListStarts returns an empty InitialState for a new list.
	ListStarts() InitialState
	// WatchLost reports that the Reflector must relist, because the storage watch can't be resumed.
	WatchLost(cause metrics.RelistCause)
	// WatchFailed reports a storage watch that failed or could not be opened. down is true if
	// watches have been failing for some time.
	WatchFailed(err error, down bool)
	// Undeliverable reports an error that storage repeats in place of an event. The Reflector
	// relists.
	Undeliverable(err error)
}

// Source presents a storage as a ListerWatcher to client-go's Reflector. Its watches outlive the
// storage's: since the Reflector relists after each error, it receives only those after which a
// watch can't be resumed.
type Source struct {
	config Config
	// id identifies this cache's watches, and opened numbers them.
	id      string
	opened  atomic.Int64
	current atomic.Pointer[Watch]
	// ahead is the watch opened before the list in progress, or nil.
	ahead atomic.Pointer[Watch]
	// listed is the last list's objects until the Reflector's store takes them.
	listed atomic.Pointer[InitialState]
	// pageLimit is the largest page that fits a message, or 0 if every page did.
	pageLimit atomic.Int64
	// relistOrder carries an order to abandon the current watch and relist.
	relistOrder chan struct{}
	// answered signals an answer to a version request.
	answered chan struct{}
}

// New returns an idle Source, for a Reflector.
func New(config Config) *Source {
	return &Source{
		config:      config,
		id:          config.Resource + "/" + strconv.FormatInt(sources.Add(1), 10),
		relistOrder: make(chan struct{}, 1),
		answered:    make(chan struct{}, 1),
	}
}

var sources atomic.Int64

var _ cache.ListerWatcherWithContext = (*Source)(nil)

// Relist makes the Reflector relist, whatever it is doing. It never blocks.
func (s *Source) Relist() {
	select {
	case s.relistOrder <- struct{}{}:
	default: // another order is pending
	}
}

const versionTimeout = 2 * time.Second

// Version returns the storage's version. ok is false if storage fails or is slow.
func (s *Source) Version(ctx context.Context) (rv uint64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	rv, err := s.config.Storage.GetCurrentResourceVersion(ctx)
	return rv, err == nil
}

// HasAnswered reports an answer to a version request, so that a broken watch is reopened soon. It
// never blocks.
func (s *Source) HasAnswered() {
	select {
	case s.answered <- struct{}{}:
	default:
	}
}

// WatchWithContext watches the storage after a version.
func (s *Source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	stream := newStream(ctx, s, options.ResourceVersion)
	first := s.takeAhead(options.ResourceVersion)
	if first != nil {
		stream.listedRV = stream.maxRV
	} else {
		var err error
		first, err = s.open(stream.ctx, options.ResourceVersion)
		if err != nil {
			stream.cancel()
			if ctx.Err() == nil {
				s.config.Owner.WatchFailed(err, false)
			}
			return nil, redactedError{err}
		}
	}
	if !s.config.Tasks.Run(func() { stream.run(first) }) {
		first.end()
		stream.cancel()
		return nil, tasks.ErrStopped
	}
	return stream, nil
}

// List implements cache.ListerWatcher. The Reflector uses the methods with a context.
func (s *Source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (s *Source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported makes the Reflector list instead of streaming the state
// (KEP-3157); see decision 0015. The spelling is client-go's.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return true }
