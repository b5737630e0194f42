// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// rawStore is the store that k8s.io/apiserver makes.
type rawStore interface {
	storage.Interface
	Close()
}

// store is the storage of one resource. The store keeps its watches on a stream
// of their own, and ends them when it is closed; all other calls pass through
// to the store of k8s.io/apiserver.
type store struct {
	storage.Interface

	backend  *Backend
	raw      rawStore
	resource schema.GroupResource
	number   uint64 // tells the stores of a backend apart
	// pathPrefix precedes the keys of storage.Interface in etcd, without a slash
	// at its end; every key begins with resourcePrefix.
	pathPrefix, resourcePrefix string

	closeOnce sync.Once
	// mu is never held together with Backend.mu.
	mu struct {
		sync.Mutex
		closed  bool
		watches map[*storeWatch]struct{} // the open ones
		// member is the address on which the last stream of a single watch was
		// opened.
		member string
	}
}

var _ storage.Interface = (*store)(nil)

func newStore(b *Backend, raw rawStore, resource schema.GroupResource, number uint64) *store {
	s := &store{
		Interface: raw,
		backend:   b,
		raw:       raw,
		resource:  resource,
		number:    number,
	}
	s.mu.watches = make(map[*storeWatch]struct{})
	return s
}

// WatchProgress is Backend.WatchProgress.
func (s *store) WatchProgress() bool { return s.backend.WatchProgress() }

// IsWatchListSemanticsUnSupported returns true if the store can't begin a watch
// with the initial state (KEP-3157), because the feature gate WatchList is off.
// The name and its spelling are client-go's.
func (s *store) IsWatchListSemanticsUnSupported() bool { return !s.backend.watchList }

// PrefersLists returns true: a list decodes objects one after the other, which takes
// a quarter to a third of the CPU time that k8s.io/apiserver's watch takes for its
// initial events, with a goroutine for each.
func (s *store) PrefersLists() bool { return true }

// KeepsHistory reports whether watches and lists of an earlier version bring all that
// the server has of it, or are refused once it has compacted the version: true of an
// etcd whose progress reports can be relied on, and of no other server. A cache that
// starts goes back to what was written before.
func (s *store) KeepsHistory() bool { return s.backend.WatchProgress() }

// Watch implements storage.Interface. The watch ends with ctx, with Stop, and
// with the store. A caller can ask for a stream of the watch's own, by the
// outgoing gRPC metadata "watchcache"; that stream ends with the watch. Beside it, the
// metadata "watchcache-pieces" ask for a watch that holds little more than its caller
// has taken, for history: the watch has Taken(version uint64) then, by which the caller
// tells from the beginning on that it has taken the events up to a resourceVersion.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx, asked := s.onStream(ctx)
	ctx, cancel := context.WithCancel(ctx)
	w := &storeWatch{store: s, cancel: cancel, stream: asked.stream}
	if asked.own {
		w.life = ctx
		if asked.pieces {
			w.ahead = &ahead{}
		}
		ctx = w.withOwnStream(ctx)
	}
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

// RequestWatchProgress implements storage.Interface. The request reaches only
// the watches of this store, or, if the caller asks for a stream of its own as
// with Watch, only those on that stream. Without an open watch on the stream,
// nothing is sent: the client would open a stream and keep it.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	ctx, asked := s.onStream(ctx)
	s.mu.Lock()
	closed, watched := s.mu.closed, false
	for w := range s.mu.watches {
		if w.stream == asked.stream {
			watched = true
			if w.life != nil {
				// The request may be what opens the stream.
				ctx = w.withOwnStream(ctx)
			}
		}
	}
	s.mu.Unlock()
	if closed {
		return s.errClosed()
	}
	if !watched {
		return nil
	}
	return s.Interface.RequestWatchProgress(ctx)
}

// EnableResourceSizeEstimation implements storage.Interface. The call starts a
// goroutine, which Close ends and awaits.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return s.errClosed()
	}
	return s.Interface.EnableResourceSizeEstimation(keys)
}

// Close ends the store's watches and goroutines. The client stays open until
// the Backend is closed.
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

func (s *store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.closed
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
	stream string          // names the stream that carries the watch
	life   context.Context // ends with the watch; nil if others may be on the stream
	ahead  *ahead          // nil if the watch does not come in pieces
}

// Taken says that the caller has taken the events up to a resourceVersion. The watch
// brings more once there is room. The first call makes it count; it has no effect on a
// watch that does not come in pieces.
func (w *storeWatch) Taken(version uint64) {
	if w.ahead != nil {
		w.ahead.taken(version)
	}
}

// Stop implements watch.Interface.
func (w *storeWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
	w.store.remove(w)
}
