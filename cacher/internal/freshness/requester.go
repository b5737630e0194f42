// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"slices"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

const (
	// hedgeDelay is the time after which we send another version request beside a slow one. It
	// doubles with each request under way.
	hedgeDelay = 50 * time.Millisecond
	// versionsInFlight bounds the requests under way. At the limit, another request replaces the
	// newest, and the oldest ones go on, so that a slow storage gets to answer.
	versionsInFlight = 4
)

// requester sends version requests in a goroutine started by the first waiting read, which ends
// when no read waits and no request is under way. Stop awaits it. A request that fails fails the
// batches that no other request under way can answer.
type requester struct {
	versions *VersionRequests
	// waiting is the unanswered batches by arrival, without VersionRequests.mu.next.
	waiting []*batch
	// sent is the requests under way, oldest first.
	sent []*versionRequest
	last time.Time // time of the newest request
	// ended receives finished requests. It has room for all.
	ended chan *versionRequest
}

// versionRequest is one request. Its goroutine ends with storage's answer or with cancel.
type versionRequest struct {
	cancel context.CancelFunc
	sent   time.Time
	// batches is the batches that the request answers. It includes their first keysPerRequest keys.
	batches []*batch
	// cancelled is true if no read needs the answer, and unanswered if that is because the reads
	// timed out.
	cancelled, unanswered bool
	answer                Answer
	err                   error
}

func newRequester(v *VersionRequests) *requester {
	return &requester{versions: v, ended: make(chan *versionRequest, versionsInFlight)}
}

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

// step sends or gives up requests, and returns the longest pause until the next step, negative if
// there is no limit. more is false when the requester must end.
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
		due = r.versions.timeout // or when a cancelled request ends
	}
	return due, true
}

func (r *requester) live() (n int) {
	for _, request := range r.sent {
		if !request.cancelled {
			n++
		}
	}
	return n
}

// hasReaders drops batches without readers, and reports whether a read waits. If none does and no
// request is under way, it clears running, so the next reader starts another requester. It holds
// the lock under which readers arrive, and so misses none.
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

func (r *requester) take() {
	v := r.versions
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.next != nil {
		r.waiting = append(r.waiting, v.mu.next)
		v.mu.next = nil
	}
}

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

// giveUp cancels a request, which stays in sent until it arrives in r.ended.
func (q *versionRequest) giveUp() {
	q.cancelled = true
	q.cancel()
}

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

// dropUseless gives up unneeded requests. Only the oldest one counts as unanswered.
func (r *requester) dropUseless(now time.Time) {
	for i, request := range r.sent {
		if !request.cancelled && !slices.ContainsFunc(request.batches, func(b *batch) bool { return !b.isDone }) {
			request.unanswered = i == 0 && now.Sub(request.sent) >= r.versions.getTimeout
			request.giveUp()
		}
	}
}

func (r *requester) failed(request *versionRequest) {
	for _, b := range request.batches {
		if !slices.ContainsFunc(r.sent, func(other *versionRequest) bool {
			return !other.cancelled && slices.Contains(other.batches, b)
		}) {
			b.end(Answer{}, request.err)
		}
	}
}

func (r *requester) stop() {
	for _, request := range r.sent {
		request.giveUp()
	}
	for range r.sent {
		<-r.ended
	}
}

// end answers or fails the batch's readers. Only the first call counts.
func (b *batch) end(answer Answer, err error) {
	if b.isDone {
		return
	}
	b.isDone, b.isAnswered = true, err == nil
	b.answer, b.err = answer, err
	close(b.done)
}
