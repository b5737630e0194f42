// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"sync"
	"time"
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
		ctx, cancel := context.WithTimeout(v.ctx, versionTimeout)
		request.rv, request.err = v.ask(ctx)
		cancel()
		close(request.done)
	}
}
