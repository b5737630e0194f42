// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-watchcache/watchcache/cacher/internal/fresh"
	"github.com/kube-watchcache/watchcache/cacher/internal/timeline"
)

const (
	// askFirst is how long a storage is in doubt, at most, before it is asked, and
	// askInDoubt the pause between two questions from then on.
	askFirst   = 5 * time.Second
	askInDoubt = 2 * time.Second
)

// contact knows whether storage answers. Storage is heard of when it brings an
// event, a bookmark, a list or an answer. Storage is in doubt from a request that
// failed until it is heard of, and is asked for its version if that takes long. Storage
// that was in doubt for the whole of timeout is lost.
type contact struct {
	time    timeline.Timeline
	timeout time.Duration
	// lost and back are called when storage is lost and when it is heard of again,
	// with the time for which it was in doubt and the last error; with no lock held.
	lost func(silence time.Duration, err error)
	back func(silence time.Duration)

	heardAt atomic.Int64 // on the timeline, in nanoseconds
	// doubtful is true while storage is in doubt. The field is written with mu held.
	doubtful atomic.Bool
	// doubts tells engine.followStorage that storage is in doubt.
	doubts chan struct{}

	mu struct {
		sync.Mutex
		since  time.Duration // of the doubt, on the timeline
		err    error         // the last one
		isLost bool
		// reads are those that wait for storage, each with the time from which on it
		// does and the end of its wait, by their numbers: asked is how many there
		// have ever been.
		reads map[uint64]*boundedRead
		asked uint64
	}
}

// boundedRead is a read that ends when storage is lost.
type boundedRead struct {
	began  time.Duration
	cancel context.CancelCauseFunc
}

func newContact(t timeline.Timeline, timeout time.Duration) *contact {
	return &contact{time: t, timeout: timeout, doubts: make(chan struct{}, 1)}
}

// heard notes that storage is there, at a time on the timeline.
func (c *contact) heard(now time.Duration) {
	c.heardAt.Store(int64(now))
	if !c.doubtful.Load() {
		return
	}
	c.mu.Lock()
	wasLost, silence := c.mu.isLost, now-c.mu.since
	c.doubtful.Store(false)
	c.mu.isLost, c.mu.err = false, nil
	c.mu.Unlock()
	if wasLost {
		c.back(silence)
	}
}

// failed notes that a request of storage, which was made at a time on the
// timeline, has failed. An answer that has come since then counts for more.
func (c *contact) failed(asked time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = errNoAnswer // the request was given up
	}
	if c.doubtful.Load() {
		if err != errNoAnswer {
			c.mu.err = err
		}
		return
	}
	if time.Duration(c.heardAt.Load()) > asked {
		return
	}
	c.mu.since, c.mu.err = asked, err
	c.doubtful.Store(true)
	select {
	case c.doubts <- struct{}{}:
	default: // engine.followStorage is going to look anyway
	}
}

// silence returns for how long storage was not heard of.
func (c *contact) silence() time.Duration {
	return max(0, c.time.Now()-time.Duration(c.heardAt.Load()))
}

// inDoubt reports whether storage is in doubt.
func (c *contact) inDoubt() bool { return c.doubtful.Load() }

// lostSince returns for how long storage was in doubt, if it is lost, and the
// last error. The error is nil if storage is not lost.
func (c *contact) lostSince() (silence time.Duration, err error) {
	if !c.doubtful.Load() {
		return 0, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.isLost {
		return 0, nil
	}
	return c.time.Now() - c.mu.since, c.mu.err
}

// look finds out whether storage is lost, and ends the reads that wait for a lost
// storage, each after grace at the soonest: storage may be back. The dispatcher
// calls look once a second.
func (c *contact) look(grace time.Duration) {
	if !c.doubtful.Load() {
		return
	}
	c.mu.Lock()
	now := c.time.Now()
	silence, err := now-c.mu.since, c.mu.err
	if !c.doubtful.Load() || silence < c.timeout {
		c.mu.Unlock()
		return
	}
	first := !c.mu.isLost
	c.mu.isLost = true
	for id, r := range c.mu.reads {
		if now-r.began >= grace {
			r.cancel(awayError(silence))
			delete(c.mu.reads, id)
		}
	}
	c.mu.Unlock()
	if first {
		c.lost(silence, err)
	}
}

// bound has read, which storage answers, end when storage is lost, and in time to
// tell its client of a storage that does not answer.
func (c *contact) bound(client context.Context, read func(context.Context) error) error {
	inTime, stop := fresh.BeforeDeadline(client)
	defer stop()
	ctx, cancel := context.WithCancelCause(inTime)
	defer cancel(nil)
	r := &boundedRead{began: c.time.Now(), cancel: cancel}
	c.mu.Lock()
	if c.mu.reads == nil {
		c.mu.reads = make(map[uint64]*boundedRead)
	}
	c.mu.asked++
	id := c.mu.asked
	c.mu.reads[id] = r
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.mu.reads, id)
		c.mu.Unlock()
	}()
	err := read(ctx)
	if err == nil {
		c.heard(c.time.Now())
		return nil
	}
	away := context.Cause(ctx)
	switch {
	case errors.Is(away, errAway):
		return awayStatus(away)
	case away != nil && client.Err() == nil:
		return awayStatus(errAway)
	}
	return err
}

// errNoAnswer is what is wrong with a storage that lets requests wait.
var errNoAnswer = errors.New("requests get no answer")

// errAway is why a read that storage was to answer has ended.
var errAway = errors.New("storage has not answered")

func awayError(silence time.Duration) error {
	return fmt.Errorf("%w for %v", errAway, silence.Round(time.Second))
}

// summaryLost is what Status says of a lost storage, and what the last errors do.
const summaryLost = "The storage does not answer"

// storageLost notes and logs that storage is lost.
func (e *engine) storageLost(silence time.Duration, err error) {
	err = withoutContent(err)
	e.errors.add(summaryLost, err, e.config.Clock.Now())
	goesOn := "the watch cache has no state yet and refuses most requests"
	if e.readiness.ready() {
		goesOn = "consistent reads fail; open watches, and reads at a resourceVersion, go on with what the watch cache has"
	}
	e.log.Error(err, summaryLost+": "+goesOn,
		"silence", silence.Round(time.Second).String(), "resourceVersion", e.state.RV(), "remedy", remedyStorage)
}

// storageBack logs that storage is heard of again.
func (e *engine) storageBack(silence time.Duration) {
	e.faults.version.end()
	e.faults.progress.end()
	e.log.Info("The storage answers again", "silence", silence.Round(time.Second).String(), "resourceVersion", e.state.RV())
}
