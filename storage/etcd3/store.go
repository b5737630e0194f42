// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// streamKey is the gRPC metadata key whose value tells the watch streams of
// different stores apart. The server ignores it.
const streamKey = "watchcache-stream"

// rawStore is the store that k8s.io/apiserver makes.
type rawStore interface {
	storage.Interface
	Close()
}

// store is a resource's storage. It keeps the watches on a stream of their own
// and ends them when it is closed; all else passes through.
type store struct {
	storage.Interface

	backend  *Backend
	raw      rawStore
	resource schema.GroupResource
	stream   metadata.MD // never changed
	// pathPrefix comes before the keys of storage.Interface in etcd, without a
	// slash at its end; resourcePrefix is what they begin with.
	pathPrefix, resourcePrefix string

	closeOnce sync.Once
	// mu is never held together with Backend.mu.
	mu struct {
		sync.Mutex
		closed  bool
		watches map[*storeWatch]struct{} // the open ones
	}
}

var _ storage.Interface = (*store)(nil)

func newStore(b *Backend, raw rawStore, resource schema.GroupResource, number uint64) *store {
	s := &store{
		Interface: raw,
		backend:   b,
		raw:       raw,
		resource:  resource,
		stream:    metadata.Pairs(streamKey, fmt.Sprintf("%s/%d", resource, number)),
	}
	s.mu.watches = make(map[*storeWatch]struct{})
	return s
}

// onStream returns ctx with the store's stream metadata instead of what it
// had: the client compares the whole of it.
func (s *store) onStream(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, s.stream)
}

// WatchProgress is Backend.WatchProgress.
func (s *store) WatchProgress() bool { return s.backend.WatchProgress() }

// Watch implements storage.Interface. The watch ends with ctx, with Stop, and
// with the store.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(s.onStream(ctx))
	w := &storeWatch{store: s, cancel: cancel}
	if !s.add(w) {
		cancel()
		return nil, s.errClosed()
	}
	inner, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		s.remove(w)
		cancel()
		return nil, err
	}
	w.Interface = inner
	context.AfterFunc(ctx, func() { s.remove(w) })
	return w, nil
}

// RequestWatchProgress implements storage.Interface: it reaches the watches of
// this store only. Without an open watch it does nothing, where the client
// would open a stream and keep it.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	s.mu.Lock()
	closed, watches := s.mu.closed, len(s.mu.watches)
	s.mu.Unlock()
	if closed {
		return s.errClosed()
	}
	if watches == 0 {
		return nil
	}
	return s.Interface.RequestWatchProgress(s.onStream(ctx))
}

// EnableResourceSizeEstimation implements storage.Interface. It starts a
// goroutine, which Close awaits.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return s.errClosed()
	}
	return s.Interface.EnableResourceSizeEstimation(keys)
}

// Close ends the store's watches and goroutines. The client stays open: it is
// the Backend's.
func (s *store) Close() {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.mu.closed = true
		watches := s.mu.watches
		s.mu.watches = nil
		s.mu.Unlock()

		s.backend.forget(s)
		for w := range watches {
			w.cancel()
		}
		s.raw.Close()
	})
}

func (s *store) errClosed() error {
	return fmt.Errorf("etcd3: %s: the storage is %w", s.resource, ErrClosed)
}

func (s *store) add(w *storeWatch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return false
	}
	s.mu.watches[w] = struct{}{}
	return true
}

func (s *store) remove(w *storeWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.watches, w)
}

// storeWatch is a watch that its store can end.
type storeWatch struct {
	watch.Interface
	store  *store
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (w *storeWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
	w.store.remove(w)
}
