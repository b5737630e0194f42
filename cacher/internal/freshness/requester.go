// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"slices"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// hedgeDelay is how long a version request may take before the next one is sent
	// beside it: its server may be paused, or its connection cut. The delay doubles with
	// each request under way.
	hedgeDelay = 50 * time.Millisecond
	// versionsInFlight bounds the requests under way. When that many are unanswered,
	// the newest one is given up for another, again and again. The oldest ones go on,
	// so that a slow storage gets to answer.
	versionsInFlight = 4
)

// requester sends version requests while reads wait for an answer, in a goroutine of its
// own: the first read that waits starts it, it ends when no read waits and no request is
// under way, and Stop awaits it.
//
// A request answers all batches that arrived before it was sent. A newer request has all
// batches of an older one, so its answer cancels older requests. A request that fails
// fails the batches that no other request under way can answer.
type requester struct {
	versions *VersionRequests
	// waiting is the batches that have no answer yet, in the order of their
	// arrival, without VersionRequests.mu.next.
	waiting []*batch
	// sent is the requests that have not ended, the oldest first.
	sent []*versionRequest
	last time.Time // when the newest one was sent
	// ended takes the requests that have ended; there is room for all.
	ended chan *versionRequest
}

// versionRequest is one request. The requester starts its goroutine and awaits
// it; the goroutine ends with the storage's answer or with cancel.
type versionRequest struct {
	cancel context.CancelFunc
	sent   time.Time
	// batches is the batches that the request answers. It asks for their first keysPerRequest
	// keys.
	batches []*batch
	// cancelled: no read needs the answer. unanswered: since the reads have waited for
	// as long as they may.
	cancelled, unanswered bool
	answer                Answer
	err                   error
}

func newRequester(v *VersionRequests) *requester {
	return &requester{versions: v, ended: make(chan *versionRequest, versionsInFlight)}
}

// run returns when no read waits for an answer, or when the cache ends.
func (r *requester) run() {
	v := r.versions
	for {
		if v.ctx.Err() != nil {
			r.stop()
			return
		}
		pause, more := r.step(v.clock.Now())
		if !more {
			return
		}
		var due <-chan time.Time
		if pause >= 0 {
			due = v.clock.After(pause)
		}
		select {
		case request := <-r.ended:
			r.finish(request)
		case <-due:
		case <-v.wake:
		case <-v.ctx.Done():
		}
	}
}

// step does the work that is due, and returns how long the requester may pause unless
// a request ends before; negative: for ever. more is false when the requester is
// to end.
func (r *requester) step(now time.Time) (pause time.Duration, more bool) {
	waits := r.hasReaders()
	r.dropUseless(now)
	if !waits {
		return -1, len(r.sent) > 0
	}
	live := r.live()
	due := time.Duration(0)
	if live > 0 {
		due = r.last.Add(hedgeDelay << (live - 1)).Sub(now)
	}
	switch {
	case due > 0:
	case len(r.sent) < versionsInFlight:
		r.send(now)
		due = hedgeDelay << live
	default:
		if live == versionsInFlight {
			r.sent[len(r.sent)-1].giveUp()
		}
		due = r.versions.timeout // or when a request that was given up has ended
	}
	return due, true
}

// live counts the requests whose answers reads need.
func (r *requester) live() (n int) {
	for _, request := range r.sent {
		if !request.cancelled {
			n++
		}
	}
	return n
}

// hasReaders forgets the batches that all readers have left, and reports whether a read
// waits. If none does, it records that the requester ends, unless requests are under way.
// It holds the lock under which readers arrive, so none is overlooked.
func (r *requester) hasReaders() bool {
	v := r.versions
	v.mu.Lock()
	defer v.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(b *batch) bool {
		b.isDone = b.isDone || b.readers == 0
		return b.isDone
	})
	if v.mu.next != nil && v.mu.next.readers == 0 {
		v.mu.next = nil
	}
	if len(r.waiting) > 0 || v.mu.next != nil {
		return true
	}
	v.mu.running = len(r.sent) > 0
	return false
}

// take moves the readers that have arrived to the batches that wait.
func (r *requester) take() {
	v := r.versions
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.next != nil {
		r.waiting = append(r.waiting, v.mu.next)
		v.mu.next = nil
	}
}

// send sends a request for all readers that wait.
func (r *requester) send(now time.Time) {
	r.take()
	v := r.versions
	ctx, cancel := context.WithCancel(v.ctx)
	request := &versionRequest{cancel: cancel, sent: now, batches: slices.Clone(r.waiting)}
	var keys []string
	for _, b := range r.waiting {
		keys = append(keys, b.keys[:min(len(b.keys), keysPerRequest-len(keys))]...)
	}
	r.sent, r.last = append(r.sent, request), now
	go func() {
		request.answer, request.err = v.ask(ctx, keys)
		r.ended <- request
	}()
}

// giveUp cancels a request; it has ended when r.ended brings it.
func (q *versionRequest) giveUp() {
	q.cancelled = true
	q.cancel()
}

// finish hands a request's answer, or its failure, to its batches.
func (r *requester) finish(request *versionRequest) {
	request.cancel()
	r.sent = slices.DeleteFunc(r.sent, func(q *versionRequest) bool { return q == request })
	r.versions.metrics.VersionRequestTook(request.result(), r.versions.clock.Since(request.sent))
	switch {
	case request.err == nil:
		r.answered(request)
	case !request.cancelled:
		r.failed(request)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(b *batch) bool { return b.isDone })
}

// result returns the outcome of a request that has ended.
func (q *versionRequest) result() metrics.VersionResult {
	switch {
	case q.err == nil:
		return metrics.VersionOK
	case !q.cancelled:
		return metrics.VersionError
	case slices.ContainsFunc(q.batches, func(b *batch) bool { return b.isAnswered }):
		return metrics.VersionSuperseded
	case q.unanswered:
		return metrics.VersionUnanswered
	}
	return metrics.VersionAbandoned
}

func (r *requester) answered(request *versionRequest) {
	keys := request.answer.Keys
	for _, b := range request.batches {
		n := min(len(b.keys), len(keys))
		b.end(Answer{Current: request.answer.Current, Keys: keys[:n]}, nil)
		keys = keys[n:]
	}
}

// dropUseless gives up the requests that no read waits for. Only the oldest one counts as
// unanswered, however many were sent beside it.
func (r *requester) dropUseless(now time.Time) {
	for i, request := range r.sent {
		if !request.cancelled && !slices.ContainsFunc(request.batches, func(b *batch) bool { return !b.isDone }) {
			request.unanswered = i == 0 && now.Sub(request.sent) >= r.versions.getTimeout
			request.giveUp()
		}
	}
}

// failed fails the batches that no other request under way can answer.
func (r *requester) failed(request *versionRequest) {
	for _, b := range request.batches {
		if !slices.ContainsFunc(r.sent, func(other *versionRequest) bool {
			return !other.cancelled && slices.Contains(other.batches, b)
		}) {
			b.end(Answer{}, request.err)
		}
	}
}

// stop awaits the requests under way.
func (r *requester) stop() {
	for _, request := range r.sent {
		request.giveUp()
	}
	for range r.sent {
		<-r.ended
	}
}

// end gives the batch's readers an answer or an error. Only the first call
// counts.
func (b *batch) end(answer Answer, err error) {
	if b.isDone {
		return
	}
	b.isDone, b.isAnswered = true, err == nil
	b.answer, b.err = answer, err
	close(b.done)
}
