// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

// errStopped is what a stopped cache answers.
var errStopped = errors.New("the watch cache is stopped")

// readiness is whether the cache has a state to serve from. It begins not
// ready, becomes ready with the first list, and not ready again only when the
// state turns out to be of another history (a restored backup).
type readiness struct {
	clock clock.Clock

	mu struct {
		sync.Mutex
		ready   bool
		stopped bool
		// doubtful: storage was found to differ from the state.
		doubtful bool
		since    time.Time     // of the last change of ready
		err      error         // why it is not ready yet, if known
		changed  chan struct{} // closed at the next change of ready or stopped
	}
}

func newReadiness(c clock.Clock) *readiness {
	r := &readiness{clock: c}
	r.mu.since = c.Now()
	r.mu.changed = make(chan struct{})
	return r
}

func (r *readiness) set(ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.stopped || r.mu.ready == ready {
		return
	}
	r.mu.ready, r.mu.err, r.mu.since = ready, nil, r.clock.Now()
	r.changedLocked()
}

// failed notes why the cache is not ready.
func (r *readiness) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.ready {
		r.mu.err = err
	}
}

// stop is final. It returns false if it was stopped before.
func (r *readiness) stop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.stopped {
		return false
	}
	r.mu.stopped, r.mu.ready = true, false
	r.changedLocked()
	return true
}

func (r *readiness) changedLocked() {
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

func (r *readiness) ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ready
}

// decides returns what decides about a read: whether there is a state, and
// will be one, and whether earlier versions of it can be trusted.
func (r *readiness) decides() (ready, stopped, trusted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ready, r.mu.stopped, !r.mu.doubtful
}

// trust tells whether storage was found to agree with the state.
func (r *readiness) trust(trusted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.doubtful = !trusted
}

// errLate is what a wait returns that took too long.
var errLate = errors.New("the watch cache is not ready in time")

// wait returns when the cache is ready, stopped, the context is done or it is
// late; a nil channel never is.
func (r *readiness) wait(ctx context.Context, late <-chan time.Time) error {
	for {
		r.mu.Lock()
		ready, stopped, changed := r.mu.ready, r.mu.stopped, r.mu.changed
		r.mu.Unlock()
		switch {
		case stopped:
			return errStopped
		case ready:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return errLate
		}
	}
}

// refusal is the answer to a request that a cache which is not ready turns
// away: 429 with a Retry-After that grows with the downtime from 1 s to 30 s,
// doubling about every 12 s (KEP-4568).
func (r *readiness) refusal() error {
	r.mu.Lock()
	stopped, err, downtime := r.mu.stopped, r.mu.err, r.clock.Since(r.mu.since)
	r.mu.Unlock()
	retry := int(math.Min(30, math.Exp2(downtime.Seconds()/12)))
	switch {
	case stopped:
		return apierrors.NewTooManyRequests(errStopped.Error(), retry)
	case err != nil:
		return apierrors.NewTooManyRequests(fmt.Sprintf("storage is (re)initializing: %v", err), retry)
	}
	return apierrors.NewTooManyRequests("storage is (re)initializing", retry)
}
