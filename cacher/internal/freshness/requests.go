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
	// wake wakes the requester up for a new read, while it waits only for the end of
	// requests whose answers no read needs.
	wake chan struct{}

	mu struct {
		sync.Mutex
		next *batch // the readers for whom nothing was sent yet; nil if there are none
		// running reports whether there is a requester, idle whether it waits for
		// wake.
		running, idle bool
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

// key returns the version of the key at the index in the request.
func (a Answer) key(index int) (rv uint64, known bool) {
	if index < 0 || index >= len(a.Keys) {
		return 0, false
	}
	return a.Keys[index], true
}

// NewVersionRequests makes version requests by calling ask, which several
// goroutines do at a time, until ctx ends. The goroutines belong to tasks. A read
// waits for an answer for up to timeout, and a GET for up to getTimeout.
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
	late    chan struct{} // closed when a GET should wait no longer
	done    chan struct{} // closed when there is an answer or an error
	answer  Answer
	err     error

	// Guarded by VersionRequests.mu. Keys and index are not written any more once
	// a request was sent for the batch.

	keys    []string
	index   map[string]int // of keys
	readers int            // those that still wait

	// Owned by the requester.

	isLate, isDone bool
	// oldest is the request that the readers have waited for the longest, without
	// requests that were given up while they waited.
	oldest *versionRequest
}

// join makes the caller one of the readers of the next request, which asks for
// the key, too, unless that is "". index is where the answer has its version.
func (v *VersionRequests) join(key string) (b *batch, index int, err error) {
	v.metrics.VersionRequestRead()
	b, index, start := v.enter(key)
	// Awaited by Stop; ends when no read waits for an answer.
	if start && !v.tasks.Run(func() { newRequester(v).run() }) {
		v.refuse()
		return nil, 0, tasks.ErrStopped
	}
	return b, index, nil
}

// enter is join without the start of the requester, which is left to the caller
// if start is true.
func (v *VersionRequests) enter(key string) (b *batch, index int, start bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b = v.mu.next
	if b == nil {
		b = &batch{arrived: v.clock.Now(), late: make(chan struct{}), done: make(chan struct{})}
		v.mu.next = b
	}
	if start = !v.mu.running; start {
		v.mu.running = true
	} else if v.mu.idle {
		v.mu.idle = false
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
	b.readers++
	return b, b.add(key), start
}

// refuse fails the readers that have arrived since a requester could not be
// started.
func (v *VersionRequests) refuse() {
	v.mu.Lock()
	b := v.mu.next
	v.mu.next, v.mu.running = nil, false
	v.mu.Unlock()
	if b != nil {
		b.end(Answer{}, tasks.ErrStopped)
	}
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

// wait waits for the batch's answer, and no longer than until late is closed if
// it is not nil.
func (v *VersionRequests) wait(ctx context.Context, b *batch, late <-chan struct{}) (Answer, error) {
	select {
	case <-b.done:
		return b.answer, b.err
	case <-late:
		v.leave(b)
		return Answer{}, v.timeoutError(v.getTimeout)
	case <-ctx.Done():
		v.leave(b)
		return Answer{}, ctx.Err()
	}
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
	b, _, err := v.join("")
	if err != nil {
		return Version{}, err
	}
	answer, err := v.wait(ctx, b, nil)
	return Version{Current: answer.Current, Since: b.arrived}, err
}

// OfKey returns storage's version at some time after the call and, unless the key
// is "", that of the key. It waits for as long as a GET does.
func (v *VersionRequests) OfKey(ctx context.Context, key string) (Version, error) {
	b, index, err := v.join(key)
	if err != nil {
		return Version{}, err
	}
	answer, err := v.wait(ctx, b, b.late)
	rv, known := answer.key(index)
	return Version{Current: answer.Current, Key: rv, Known: known, Since: b.arrived}, err
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

// timeoutError is not the error of a context, which would stand for the end of
// the reader's own.
func (v *VersionRequests) timeoutError(after time.Duration) error {
	return apierrors.NewTimeoutError(fmt.Sprintf("storage did not tell its resourceVersion in %v", after), RetrySeconds)
}
