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
	"github.com/kube-watchcache/watchcache/internal/minors"
)

// Watch is one storage watch, read by the stream. The progress requester calls the exported
// methods.
type Watch struct {
	watch.Interface
	cancel context.CancelFunc
	// metadata is the watch's own gRPC metadata. etcd's client multiplexes watches with equal
	// metadata over one gRPC stream. On its own stream, a watch does not wait behind others, has
	// its own progress requests, and can replace a hung watch on another connection.
	metadata metadata.MD
	opened   time.Time
	after    uint64 // for a watch opened ahead: its start version

	// received counts the events and reports that advanced the cache. receivedAt is the time of the
	// last one in nanoseconds since opened, which is monotonic.
	received   atomic.Int64
	receivedAt atomic.Int64
	// busy is true until the Reflector takes the last event.
	busy atomic.Bool
	// hung is closed by GiveUp.
	hung     chan struct{}
	hangOnce sync.Once
}

func (w *Watch) onStream(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, w.metadata)
}

// Busy reports whether an event waits for the Reflector.
func (w *Watch) Busy() bool { return w.busy.Load() }

// Received returns the number of events and reports that advanced the cache, and the time of the
// last one or of the watch's start.
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

// end stops the watch without awaiting it.
func (w *Watch) end() {
	w.Interface.Stop()
	w.cancel()
}

func (w *Watch) drain() {
	for range w.ResultChan() {
	}
}

func (s *Source) discard(w *Watch) {
	w.end()
	// Awaited by Config.Tasks; ends with the storage watch.
	if !s.config.Tasks.Run(w.drain) {
		w.drain()
	}
}

// open opens the storage watch that feeds the cache, after version rv.
func (s *Source) open(ctx context.Context, rv string) (*Watch, error) {
	w, err := s.watch(ctx, minors.ForCache(s.config.Storage), rv)
	if err != nil {
		return nil, err
	}
	s.current.Store(w)
	return w, nil
}

func (s *Source) openBeside(ctx context.Context, rv string) (*Watch, error) {
	return s.watch(ctx, s.config.Storage, rv)
}

func (s *Source) watch(ctx context.Context, of storage.Interface, rv string) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{
		cancel:   cancel,
		hung:     make(chan struct{}),
		metadata: metadata.Pairs(grpckeys.Caller, s.id+"/"+strconv.FormatInt(s.opened.Add(1), 10)),
	}
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	opened, err := of.Watch(w.onStream(ctx), s.config.Prefix, storage.ListOptions{
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

// RequestProgress requests a progress report for the open watch, if any.
func (s *Source) RequestProgress(ctx context.Context) error {
	w := s.current.Load()
	if w == nil {
		return nil
	}
	return s.config.Storage.RequestWatchProgress(w.onStream(ctx))
}
