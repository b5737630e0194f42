// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
)

// Watch is one watch of the storage. The stream reads it. The progress requester calls
// Busy and Received, and GiveUp if the watch hangs.
type Watch struct {
	watch.Interface
	cancel context.CancelFunc
	// metadata is the gRPC metadata of the watch. etcd's client multiplexes watches with
	// equal metadata over one gRPC stream. With metadata of its own a watch does not wait
	// behind others, has its own progress requests, and can replace a hung watch on
	// another connection.
	metadata metadata.MD
	opened   time.Time
	after    uint64 // the version that a watch opened ahead begins after

	// received counts the events and reports that advanced the cache, and receivedAt is
	// the time of the last one in nanoseconds since opened, which is monotonic.
	received   atomic.Int64
	receivedAt atomic.Int64
	// busy is true while the Reflector has not taken the last event.
	busy atomic.Bool
	// hung is closed when the watch must be given up.
	hung     chan struct{}
	hangOnce sync.Once
}

// onStream marks ctx as belonging to the watch.
func (w *Watch) onStream(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, w.metadata)
}

// Busy reports whether an event of the watch waits for the Reflector.
func (w *Watch) Busy() bool { return w.busy.Load() }

// Received returns the number of events and reports that advanced the cache, and the time
// of the last one, or when the watch was opened if there was none.
func (w *Watch) Received() (count int64, last time.Time) {
	count = w.received.Load()
	return count, w.opened.Add(time.Duration(w.receivedAt.Load()))
}

// GiveUp makes the stream replace this watch.
func (w *Watch) GiveUp() { w.hangOnce.Do(func() { close(w.hung) }) }

func (w *Watch) noteReceived(now time.Time) {
	w.receivedAt.Store(int64(now.Sub(w.opened)))
	w.received.Add(1)
}

// end stops the watch; drain then awaits its end.
func (w *Watch) end() {
	w.Interface.Stop()
	w.cancel()
}

func (w *Watch) drain() {
	for range w.ResultChan() {
	}
}

// discard ends an abandoned watch without waiting for it.
func (s *Source) discard(w *Watch) {
	w.end()
	// Awaited by Config.Tasks; ends with the storage's watch.
	if !s.config.Tasks.Run(w.drain) {
		w.drain()
	}
}

// open opens the storage watch that feeds the cache, after the version rv. It ends with ctx.
func (s *Source) open(ctx context.Context, rv string) (*Watch, error) {
	w, err := s.openBeside(ctx, rv)
	if err != nil {
		return nil, err
	}
	s.current.Store(w)
	return w, nil
}

// openBeside opens a storage watch beside the one that feeds the cache.
func (s *Source) openBeside(ctx context.Context, rv string) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{
		cancel:   cancel,
		hung:     make(chan struct{}),
		metadata: metadata.Pairs(grpckeys.Caller, s.id+"/"+strconv.FormatInt(s.opened.Add(1), 10)),
	}
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	opened, err := s.config.Storage.Watch(w.onStream(ctx), s.config.Prefix, storage.ListOptions{
		ResourceVersion: rv,
		Predicate:       predicate,
		Recursive:       true,
		ProgressNotify:  true,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	w.Interface = opened
	w.opened = s.config.Clock.Now()
	return w, nil
}

// Current returns the open storage watch, or nil.
func (s *Source) Current() *Watch { return s.current.Load() }

// RequestProgress requests a progress report for the open watch. It does nothing if no
// watch is open.
func (s *Source) RequestProgress(ctx context.Context) error {
	w := s.current.Load()
	if w == nil {
		return nil
	}
	return s.config.Storage.RequestWatchProgress(w.onStream(ctx))
}
