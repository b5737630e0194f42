// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/capability"
)

// store is the storage of one resource. It puts its watches on a stream of their own, and ends them
// when closed. Other calls go to the store of k8s.io/apiserver.
type store struct {
	storage.Interface

	backend  *Backend
	closeRaw func() // closes the store of k8s.io/apiserver
	resource schema.GroupResource
	number   uint64 // unique in the backend
	// pathPrefix precedes the keys of storage.Interface in etcd, without a trailing slash. Every
	// key begins with resourcePrefix.
	pathPrefix, resourcePrefix string
	transformer                *watchedTransformer
	// nextEndpoint counts the streams of single watches, to choose their endpoints. Guarded by
	// watchConnections.mu.
	nextEndpoint int

	closeOnce sync.Once
	// mu is never held together with Backend.mu.
	mu struct {
		sync.Mutex
		closed  bool
		watches map[*storeWatch]struct{} // open
	}
}

var _ storage.Interface = (*store)(nil)

// A store has every optional capability that a cache uses.
var _ interface {
	capability.ProgressReporter
	capability.HistoryKeeper
	capability.VersionLister
	capability.KeyVersioner
	capability.ConnectionChecker
	capability.ServerSharer
	capability.EncryptedReader
	capability.PathPrefixer
} = (*store)(nil)

// WatchProgress is Backend.WatchProgress.
func (s *store) WatchProgress() bool { return s.backend.WatchProgress() }

// Server implements capability.ServerSharer.
func (s *store) Server() any { return s.backend }

// PathPrefix implements capability.PathPrefixer.
func (s *store) PathPrefix() string { return s.pathPrefix }

// CheckConnection implements capability.ConnectionChecker. The stores of a Backend share a result
// for some seconds.
func (s *store) CheckConnection(ctx context.Context) error { return s.backend.checkConnection(ctx) }

// IsWatchListSemanticsUnSupported returns true if the store can't begin a watch with the initial
// state (KEP-3157), because the feature gate WatchList is off. The spelling is client-go's.
func (s *store) IsWatchListSemanticsUnSupported() bool { return !s.backend.watchList }

// KeepsHistory reports whether watches and lists of an earlier version are complete, or fail if it
// is compacted. This holds for an etcd with reliable progress reports, and no other server.
func (s *store) KeepsHistory() bool { return s.backend.WatchProgress() }

// Watch implements storage.Interface. The watch ends with ctx, Stop or the store. With the outgoing
// gRPC metadata "watchcache" it has a stream of its own, which ends with the watch.
func (s *store) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	ctx, stream, own := s.onStream(ctx)
	ctx, cancel := context.WithCancel(ctx)
	w := &storeWatch{store: s, cancel: cancel, stream: stream}
	if own {
		w.life = ctx
		ctx = context.WithValue(ctx, ownStreamKey{}, w)
	}
	s.mu.Lock()
	closed := s.mu.closed
	if !closed {
		s.mu.watches[w] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
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

// ReadsEncrypted returns true: GuaranteedUpdate ignores suggestions if values are encrypted.
func (s *store) ReadsEncrypted() bool { return true }

// GuaranteedUpdate implements storage.Interface. A suggestion of the current state saves a read. We
// can't use it if values are encrypted: the update would succeed although the stored object can't
// be decrypted.
func (s *store) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion runtime.Object) error {
	if s.transformer.changes.Load() {
		suggestion = nil
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, suggestion)
}

// RequestWatchProgress implements storage.Interface. The request reaches only this store's watches,
// or, with metadata as in Watch, those on the caller's own stream. If there are none, nothing is
// sent, because the client would open a stream and keep it.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	ctx, stream, _ := s.onStream(ctx)
	s.mu.Lock()
	closed, watched := s.mu.closed, false
	for w := range s.mu.watches {
		if w.stream == stream {
			watched = true
			if w.life != nil {
				// The request may open the stream.
				ctx = context.WithValue(ctx, ownStreamKey{}, w)
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

// EnableResourceSizeEstimation implements storage.Interface. It starts a goroutine, which Close
// ends and awaits.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return s.errClosed()
	}
	return s.Interface.EnableResourceSizeEstimation(keys)
}

// Close ends the store's watches and goroutines, but not the Backend's client.
func (s *store) Close() {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.mu.closed = true
		watches := s.mu.watches
		s.mu.watches = nil
		s.mu.Unlock()

		s.backend.mu.Lock()
		delete(s.backend.mu.stores, s)
		s.backend.mu.Unlock()
		for w := range watches {
			w.cancel()
		}
		s.closeRaw()
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
	stream string          // name of the stream that carries the watch
	life   context.Context // ends with the watch; nil if others may be on the stream
}

// Stop implements watch.Interface.
func (w *storeWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
	w.store.remove(w)
}
