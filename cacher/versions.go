// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// versionTimeout bounds one version request, which serves many reads and so
// does not end with the context of any one of them.
const versionTimeout = 10 * time.Second

// versions asks storage for its current resourceVersion on behalf of
// consistent reads. As in Raft's ReadIndex, a read must not use an answer that
// was asked for before it arrived: one that arrives while a request is under
// way waits for the next one, and all who wait share it.
type versions struct {
	ask   func(context.Context) (uint64, error)
	tasks *tasks
	ctx   context.Context // ends with the cache

	mu struct {
		sync.Mutex
		next    *versionRequest // not sent yet; nil if nobody waits for it
		running bool
	}
}

type versionRequest struct {
	done chan struct{}
	rv   uint64
	err  error
}

// current returns storage's resourceVersion at some time after the call.
func (v *versions) current(ctx context.Context) (uint64, error) {
	v.mu.Lock()
	if v.mu.next == nil {
		v.mu.next = &versionRequest{done: make(chan struct{})}
	}
	request := v.mu.next
	if !v.mu.running {
		// Awaited by Stop; ends when nobody waits for an answer.
		v.mu.running = v.tasks.run(v.run)
		if !v.mu.running {
			v.mu.next = nil
			v.mu.Unlock()
			return 0, errStopped
		}
	}
	v.mu.Unlock()
	select {
	case <-request.done:
		return request.rv, request.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run sends requests, one at a time, for as long as reads wait for one.
func (v *versions) run() {
	for {
		v.mu.Lock()
		request := v.mu.next
		v.mu.next = nil
		v.mu.running = request != nil
		v.mu.Unlock()
		if request == nil {
			return
		}
		request.rv, request.err = v.once()
		close(request.done)
	}
}

// once sends one request. That it took too long is not to be taken for the end
// of any reader's own context.
func (v *versions) once() (uint64, error) {
	ctx, cancel := context.WithTimeout(v.ctx, versionTimeout)
	defer cancel()
	rv, err := v.ask(ctx)
	switch {
	case err == nil:
		return rv, nil
	case v.ctx.Err() != nil:
		return 0, errStopped
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return 0, apierrors.NewTimeoutError(fmt.Sprintf("storage did not tell its resourceVersion in %v", versionTimeout), retryTooLarge)
	}
	return 0, err
}
