// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
)

// Watch is one watch of the storage. The stream reads it. The progress requester
// looks at Busy and Heard, and calls GiveUp if the watch hangs.
type Watch struct {
	watch.Interface
	cancel context.CancelFunc
	// metadata is the gRPC metadata of the watch. etcd's client multiplexes watches with
	// equal metadata over one gRPC stream. With one of its own a watch does not wait
	// behind others, has its own progress requests, and replaces one that hangs on
	// another connection.
	metadata metadata.MD
	opened   time.Time
	after    uint64 // of a watch that was opened ahead: the version that it begins after

	// heard counts events and reports that have advanced the cache, heardAt is the time
	// of the last one; busy: the Reflector has not taken the last event yet.
	heard   atomic.Int64
	heardAt atomic.Int64 // nanoseconds since opened, which no change of the clock affects
	busy    atomic.Bool
	// hung is closed when the watch must be given up.
	hung     chan struct{}
	hangOnce sync.Once
}

// onStream marks ctx as belonging to the watch.
func (w *Watch) onStream(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, w.metadata)
}

// Busy reports whether something that the watch has brought waits for the
// Reflector to take it.
func (w *Watch) Busy() bool { return w.busy.Load() }

// Heard returns how often the watch has brought the cache further, and when it
// last did; when it was opened if it never has.
func (w *Watch) Heard() (times int64, last time.Time) {
	times = w.heard.Load()
	return times, w.opened.Add(time.Duration(w.heardAt.Load()))
}

// GiveUp orders the stream to open another watch instead of this one.
func (w *Watch) GiveUp() { w.hangOnce.Do(func() { close(w.hung) }) }

func (w *Watch) hears(now time.Time) {
	w.heardAt.Store(int64(now.Sub(w.opened)))
	w.heard.Add(1)
}

// end stops the watch; drain returns when it has ended.
func (w *Watch) end() {
	w.Interface.Stop()
	w.cancel()
}

func (w *Watch) drain() {
	for range w.ResultChan() { // awaits the end of the storage's watch
	}
}

// discard ends a watch that nobody reads any more.
func (s *Source) discard(w *Watch) {
	w.end()
	// Awaited by Config.Tasks; ends with the storage's watch.
	if !s.config.Tasks.Run(w.drain) {
		w.drain()
	}
}

// open opens the watch of the storage that feeds the cache, with the initial state if
// options ask. The watch ends with ctx.
func (s *Source) open(ctx context.Context, options metav1.ListOptions) (*Watch, error) {
	w, err := s.openBeside(ctx, options)
	if err != nil {
		return nil, err
	}
	s.current.Store(w)
	return w, nil
}

// openBeside opens a watch of the storage beside the one that feeds the cache.
func (s *Source) openBeside(ctx context.Context, options metav1.ListOptions) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{
		cancel: cancel, hung: make(chan struct{}),
		metadata: metadata.Pairs(grpckeys.Caller, s.id+"/"+strconv.FormatInt(s.opened.Add(1), 10)),
	}
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	opened, err := s.config.Storage.Watch(w.onStream(ctx), s.config.Prefix, storage.ListOptions{
		ResourceVersion:      options.ResourceVersion,
		ResourceVersionMatch: options.ResourceVersionMatch,
		SendInitialEvents:    options.SendInitialEvents,
		Predicate:            predicate,
		Recursive:            true,
		ProgressNotify:       true,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	w.Interface, w.opened = opened, s.config.Clock.Now()
	return w, nil
}

// Current returns the storage's watch that is open, nil if none is.
func (s *Source) Current() *Watch { return s.current.Load() }

// RequestProgress asks the storage to report the progress of the watch that is
// open. Without one there is nothing to ask for.
func (s *Source) RequestProgress(ctx context.Context) error {
	w := s.current.Load()
	if w == nil {
		return nil
	}
	return s.config.Storage.RequestWatchProgress(w.onStream(ctx))
}
