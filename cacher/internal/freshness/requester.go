// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"slices"
	"time"

	"github.com/kube-watchcache/watchcache/cacher/internal/tasks"
	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// hedgeDelay is how long a version request may take before the next one is
	// sent beside it: it may have gone to a server that is paused, or over a
	// connection that is cut. The delay doubles with each request under way.
	hedgeDelay = 50 * time.Millisecond
	// versionsInFlight bounds the requests under way. When that many are unanswered,
	// the newest one is given up for another, again and again. The oldest ones go on,
	// so that a slow storage gets to answer.
	versionsInFlight = 4
)

// requester sends version requests while reads wait for an answer. It is a goroutine of
// its own: the first read that waits starts it, it ends when no read waits and no request
// is under way, and Stop awaits it.
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
	// batches is the batches that the request answers, and asks for the keys of.
	batches []askedBatch
	// cancelled: no read needs the answer.
	cancelled bool
	answer    Answer
	err       error
}

// askedBatch is a batch, and the range of its keys within a request's keys. The range may
// be shorter than the batch's keys.
type askedBatch struct {
	batch    *batch
	from, to int
}

func (r *versionRequest) answers(b *batch) bool {
	return slices.ContainsFunc(r.batches, func(a askedBatch) bool { return a.batch == b })
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
		}
		pause, more := r.step(v.clock.Now())
		if !more {
			return
		}
		var due <-chan time.Time
		stop := func() {}
		if pause >= 0 {
			timer := v.clock.NewTimer(pause)
			due, stop = timer.C(), func() { timer.Stop() }
		}
		select {
		case request := <-r.ended:
			r.finish(request)
		case <-due:
		case <-v.wake:
		case <-v.ctx.Done():
		}
		stop()
	}
}

// step does the work that is due, and returns how long the requester may pause unless
// a request ends before; negative: for ever. more is false when the requester is
// to end.
func (r *requester) step(now time.Time) (pause time.Duration, more bool) {
	r.expire(now)
	r.dropUseless()
	if !r.hasReaders(len(r.sent) == 0) {
		return -1, len(r.sent) > 0
	}
	live := len(r.live())
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
	return min(due, r.untilLate(now)), true
}

// live returns the requests whose answers reads need.
func (r *requester) live() []*versionRequest {
	live := make([]*versionRequest, 0, versionsInFlight)
	for _, request := range r.sent {
		if !request.cancelled {
			live = append(live, request)
		}
	}
	return live
}

// hasReaders reports whether a read waits. If none does, it records that the requester
// ends, or waits for wake. It holds the lock under which readers arrive, so none is
// overlooked.
func (r *requester) hasReaders(end bool) bool {
	v := r.versions
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.next != nil && v.mu.next.readers == 0 {
		v.mu.next = nil
	}
	if len(r.waiting) > 0 || v.mu.next != nil {
		v.mu.idle = false
		return true
	}
	v.mu.running, v.mu.idle = !end, !end
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

// expire ends the wait of the readers that have waited for too long, and forgets
// the batches that all readers have left.
func (r *requester) expire(now time.Time) {
	v := r.versions
	v.mu.Lock()
	if next := v.mu.next; next != nil && now.Sub(next.arrived) >= v.getTimeout {
		r.waiting = append(r.waiting, next)
		v.mu.next = nil
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(b *batch) bool {
		b.isDone = b.readers == 0
		return b.isDone
	})
	v.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(b *batch) bool {
		waited := now.Sub(b.arrived)
		if !b.isLate && waited >= v.getTimeout {
			b.isLate = true
			close(b.late)
		}
		if waited >= v.timeout {
			b.end(Answer{}, v.timeoutError(v.timeout))
		}
		return b.isDone
	})
}

// untilLate returns when the next batch is late.
func (r *requester) untilLate(now time.Time) time.Duration {
	v := r.versions
	pause := v.timeout
	for _, b := range r.waiting {
		deadline := v.timeout
		if !b.isLate {
			deadline = v.getTimeout
		}
		pause = min(pause, b.arrived.Add(deadline).Sub(now))
	}
	return pause
}

// send sends a request for all readers that wait.
func (r *requester) send(now time.Time) {
	r.take()
	v := r.versions
	ctx, cancel := context.WithCancel(v.ctx)
	request := &versionRequest{cancel: cancel, sent: now, batches: make([]askedBatch, 0, len(r.waiting))}
	var keys []string
	for _, b := range r.waiting {
		from := len(keys)
		if b.oldest == nil || b.oldest.cancelled {
			b.oldest = request
		}
		keys = append(keys, b.keys[:min(len(b.keys), keysPerRequest-from)]...)
		request.batches = append(request.batches, askedBatch{b, from, len(keys)})
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
	case slices.ContainsFunc(q.batches, func(a askedBatch) bool { return a.batch.isAnswered() }):
		return metrics.VersionSuperseded
	case slices.ContainsFunc(q.batches, func(a askedBatch) bool { return a.batch.isLate && a.batch.oldest == q }):
		return metrics.VersionUnanswered
	}
	return metrics.VersionAbandoned
}

// isAnswered reports whether an answer has come while readers waited for it.
func (b *batch) isAnswered() bool {
	select {
	case <-b.done:
		return b.err == nil
	default:
		return false
	}
}

func (r *requester) answered(request *versionRequest) {
	for _, a := range request.batches {
		answer := Answer{Current: request.answer.Current}
		if a.to <= len(request.answer.Keys) {
			answer.Keys = request.answer.Keys[a.from:a.to]
		}
		a.batch.end(answer, nil)
	}
}

// dropUseless gives up the requests that no read waits for.
func (r *requester) dropUseless() {
	for _, request := range r.sent {
		if !slices.ContainsFunc(request.batches, func(a askedBatch) bool { return !a.batch.isDone }) {
			request.giveUp()
		}
	}
}

func (r *requester) failed(request *versionRequest) {
	live := r.live()
	for _, a := range request.batches {
		if !slices.ContainsFunc(live, func(other *versionRequest) bool { return other.answers(a.batch) }) {
			a.batch.end(Answer{}, request.err)
		}
	}
}

// stop fails all readers that wait, and awaits the requests under way.
func (r *requester) stop() {
	r.take()
	for _, b := range r.waiting {
		b.end(Answer{}, tasks.ErrStopped)
	}
	r.waiting = nil
	for _, request := range r.sent {
		request.giveUp()
	}
	for range r.sent {
		<-r.ended
	}
	r.sent = nil
}

// end gives the batch's readers an answer or an error. Only the first call
// counts.
func (b *batch) end(answer Answer, err error) {
	if b.isDone {
		return
	}
	b.isDone = true
	b.answer, b.err = answer, err
	close(b.done)
}
