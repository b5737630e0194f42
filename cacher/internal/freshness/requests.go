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
	// keysPerRequest is how many keys a version request asks for, at most, and
	// maxAskedKey how long each of them may be, in bytes: a request stays small
	// whatever clients ask for. The GETs of other keys wait for storage's
	// version instead, as LISTs do.
	keysPerRequest = 100
	maxAskedKey    = 1024
)

// VersionRequests asks storage for its current resourceVersion, and for the versions of
// single keys, on behalf of consistent reads. As in Raft's ReadIndex, a read must not
// use the answer to a request that was sent before it arrived: reads that arrive while a
// request is under way share the next one. Any later request may answer a read, so a slow
// one holds up nobody: the next one is sent beside it. See requester.
type VersionRequests struct {
	ask   func(ctx context.Context, keys []string) (Answer, error)
	clock clock.WithTicker
	// timeout is how long a read waits for an answer, getTimeout how long a GET
	// does.
	timeout, getTimeout time.Duration
	tasks               *tasks.Group
	ctx                 context.Context // ends with the cache
	metrics             *metrics.Resource
	// told is the highest version that storage has returned since the last list.
	told atomic.Uint64
	// wake wakes the requester up when the first reader of a batch has come.
	wake chan struct{}

	mu struct {
		sync.Mutex
		next    *batch // the readers for whom nothing was sent yet; nil if there are none
		running bool   // there is a requester
	}
}

// Answer is storage's answer to one request.
type Answer struct {
	// Current is storage's resourceVersion at the time of the answer.
	Current uint64
	// Keys are the resourceVersions of the last writes of the keys that the
	// request named, 0 where there is no such key. There may be fewer than keys.
	Keys []uint64
}

// NewVersionRequests makes version requests by calling ask, on several goroutines of tasks,
// until ctx ends, before tasks do. A read waits for an answer for up to timeout, and a GET
// for up to getTimeout.
func NewVersionRequests(ctx context.Context, clock clock.WithTicker, tasks *tasks.Group, m *metrics.Resource, timeout, getTimeout time.Duration,
	ask func(ctx context.Context, keys []string) (Answer, error)) *VersionRequests {
	return &VersionRequests{
		ask: ask, clock: clock, timeout: timeout, getTimeout: getTimeout,
		tasks: tasks, ctx: ctx, metrics: m, wake: make(chan struct{}, 1),
	}
}

// batch is the readers that have arrived between two requests and share an
// answer.
type batch struct {
	arrived time.Time     // when the first of them did
	done    chan struct{} // closed when there is an answer or an error
	answer  Answer
	err     error

	// Guarded by VersionRequests.mu. Keys and index are not written any more once
	// a request was sent for the batch.

	keys    []string
	index   map[string]int // of keys
	readers int            // those that still wait

	// Owned by the requester.

	isDone, isAnswered bool
}

// join makes the caller one of the readers of the next request, which asks for
// the key, too, unless that is "". index is where the answer has its version.
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
	case start && !v.tasks.Run(func() { newRequester(v).run() }): // ends when no read waits for an answer
		return nil, 0, tasks.ErrStopped // v.ctx has ended, for other readers as well
	case !start && first:
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
	return b, index, nil
}

// add returns the index of the key's version in the answer, -1 if the batch
// does not ask for it.
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

// leave takes a reader that waits no longer out of the batch. Nothing is asked
// for a batch that all readers have left.
func (v *VersionRequests) leave(b *batch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b.readers--
}

// Version is the part of an answer for one read.
type Version struct {
	// Current is storage's resourceVersion at some time after the read arrived.
	Current uint64
	// Key is the resourceVersion of the last write of the read's key at that
	// time, 0 if there is no such key. Known: storage has returned it.
	Key   uint64
	Known bool
	// Since is when the first of the reads arrived that share the answer.
	Since time.Time
}

// Current returns storage's version at some time after the call.
func (v *VersionRequests) Current(ctx context.Context) (Version, error) {
	return v.await(ctx, "", v.timeout)
}

// OfKey returns storage's version at some time after the call and, unless the key
// is "", that of the key. It waits for as long as a GET does.
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
		// Not the error of a context, which would stand for the end of the reader's own.
		err = apierrors.NewTimeoutError(fmt.Sprintf("storage returned no resourceVersion in %v", timeout), RetrySeconds)
	case <-ctx.Done():
		err = ctx.Err()
	case <-v.ctx.Done():
		err = tasks.ErrStopped
	}
	v.leave(b)
	return Version{}, err
}

// Told records a version that storage has returned; ask calls it.
func (v *VersionRequests) Told(rv uint64) {
	for {
		told := v.told.Load()
		if rv <= told || v.told.CompareAndSwap(told, rv) {
			return
		}
	}
}

// Listed notes that storage was listed, at rv.
func (v *VersionRequests) Listed(rv uint64) { v.told.Store(rv) }

// Highest returns the highest version that storage has returned since the last list.
func (v *VersionRequests) Highest() uint64 { return v.told.Load() }
