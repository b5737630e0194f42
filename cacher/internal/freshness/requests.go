// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// A version request names at most keysPerRequest keys of at most maxAskedKey bytes, so that it
	// stays small. GETs of other keys wait for storage's version, like LISTs.
	keysPerRequest = 100
	maxAskedKey    = 1024
)

// VersionRequests requests storage's current resourceVersion, and the versions of single keys, for
// consistent reads. Reads share requests; see the package comment.
type VersionRequests struct {
	ask   func(ctx context.Context, keys []string) (Answer, error)
	clock clock.WithTicker
	// timeout and getTimeout bound the wait of a read and of a GET.
	timeout, getTimeout time.Duration
	tasks               *tasks.Group
	ctx                 context.Context // ends with the cache
	metrics             *metrics.Resource
	// told is the highest version reported by storage since the last list.
	told atomic.Uint64
	wake chan struct{}

	mu struct {
		sync.Mutex
		next    *batch // readers of the next request, or nil
		running bool   // a requester exists
	}
}

// Answer is storage's answer to one request.
type Answer struct {
	// Current is storage's resourceVersion at the time of the answer.
	Current uint64
	// Keys are the resourceVersions of the last writes to the requested keys, 0 for a missing key.
	// It may be shorter than the request's keys.
	Keys []uint64
}

// NewVersionRequests makes version requests from several goroutines of tasks until ctx ends, which
// must be before tasks do. timeout and getTimeout bound the wait of a read and of a GET.
func NewVersionRequests(ctx context.Context, clock clock.WithTicker, tasks *tasks.Group, m *metrics.Resource, timeout, getTimeout time.Duration,
	ask func(ctx context.Context, keys []string) (Answer, error)) *VersionRequests {
	return &VersionRequests{
		ask: ask, clock: clock, timeout: timeout, getTimeout: getTimeout,
		tasks: tasks, ctx: ctx, metrics: m, wake: make(chan struct{}, 1),
	}
}

type batch struct {
	arrived time.Time     // time of the first reader
	done    chan struct{} // closed by the answer or an error
	answer  Answer
	err     error

	// Guarded by VersionRequests.mu. keys and index are immutable once sent.

	keys    []string
	index   map[string]int // of keys
	readers int            // still waiting

	// Owned by the requester.

	isDone, isAnswered bool
}

// join adds the caller to the readers of the next request, and key, unless "", to its keys. index
// is the key's index in the answer.
func (v *VersionRequests) join(key string) (b *batch, index int, err error) {
	v.metrics.VersionRequestRead()
	v.mu.Lock()
	start, first := !v.mu.running, v.mu.next == nil
	if first {
		v.mu.next = &batch{arrived: v.clock.Now(), done: make(chan struct{})}
	}
	v.mu.running = true
	b = v.mu.next
	b.readers++
	index = b.add(key)
	v.mu.Unlock()
	switch {
	case start && !v.tasks.Run(func() { newRequester(v).run() }): // ends when no read waits
		return nil, 0, tasks.ErrStopped // v.ctx has ended
	case !start && first:
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
	return b, index, nil
}

func (b *batch) add(key string) int {
	if key == "" || len(key) > maxAskedKey {
		return -1
	}
	if at, ok := b.index[key]; ok {
		return at
	}
	if len(b.keys) == keysPerRequest {
		return -1
	}
	if b.index == nil {
		b.index = make(map[string]int)
	}
	at := len(b.keys)
	b.keys, b.index[key] = append(b.keys, key), at
	return at
}

func (v *VersionRequests) leave(b *batch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b.readers--
}

// Version is one read's part of an answer.
type Version struct {
	// Current is storage's resourceVersion at some time after the read arrived.
	Current uint64
	// Key is the resourceVersion at that time of the last write to the read's key, 0 if there is no
	// such key. Valid only if Known.
	Key   uint64
	Known bool
	// Since is the arrival of the first read that shares the answer.
	Since time.Time
}

// Current returns storage's version at some time after the call.
func (v *VersionRequests) Current(ctx context.Context) (Version, error) {
	return v.await(ctx, "", v.timeout)
}

// OfKey returns storage's version at some time after the call and, unless key is "", that of the
// key. It waits as long as a GET may.
func (v *VersionRequests) OfKey(ctx context.Context, key string) (Version, error) {
	return v.await(ctx, key, v.getTimeout)
}

func (v *VersionRequests) await(ctx context.Context, key string, timeout time.Duration) (version Version, err error) {
	b, index, err := v.join(key)
	if err != nil {
		return Version{}, err
	}
	timer := v.clock.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-b.done:
		version.Current, version.Since = b.answer.Current, b.arrived
		if version.Known = index >= 0 && index < len(b.answer.Keys); version.Known {
			version.Key = b.answer.Keys[index]
		}
		return version, b.err
	case <-timer.C():
		// Callers would mistake a context's error for their own context's.
		err = apierrors.NewTimeoutError(fmt.Sprintf("storage returned no resourceVersion in %v", timeout), RetrySeconds)
	case <-ctx.Done():
		err = ctx.Err()
	case <-v.ctx.Done():
		err = tasks.ErrStopped
	}
	v.leave(b)
	return Version{}, err
}

// Told records a version reported by storage.
func (v *VersionRequests) Told(rv uint64) {
	for {
		told := v.told.Load()
		if rv <= told || v.told.CompareAndSwap(told, rv) {
			return
		}
	}
}

// Listed resets the highest version to that of a list.
func (v *VersionRequests) Listed(rv uint64) { v.told.Store(rv) }

// Highest returns the highest version reported by storage since the last list.
func (v *VersionRequests) Highest() uint64 { return v.told.Load() }
