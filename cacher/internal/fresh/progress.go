// SPDX-License-Identifier: Apache-2.0

package fresh

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// progressInterval is the time between two progress requests while reads
	// go on waiting, and progressSpacing the least time between any two: a
	// read that begins to wait asks again, together with all who do so within
	// the spacing.
	progressInterval = 100 * time.Millisecond
	progressSpacing  = 5 * time.Millisecond
	// progressTimeout bounds one request, which the client of an etcd that it
	// cannot reach would hold for as long as its context allows.
	progressTimeout = 250 * time.Millisecond
)

// ProgressRequester asks storage to report the progress of the cache's watch
// while reads wait: an idle resource gets no events, so that without a report
// the cache could not know that it is fresh. The requester asks as well when
// nothing has followed an event for progressInterval, so that the cache may show
// the event: more could belong to its revision. Otherwise it asks for nothing.
type ProgressRequester struct {
	config ProgressConfig
	clock  clock.WithTicker
	// hangs looks at the watch before each request.
	hangs hangDetector

	// wake tells run that an event is unfinished; no one need do so while
	// watching is true.
	wake     chan struct{}
	watching atomic.Bool
	// now is true when progress is to be requested although no read waits.
	now atomic.Bool
}

// ProgressConfig is what a ProgressRequester works with.
type ProgressConfig struct {
	Clock    clock.WithTicker
	Waiting  *WaitingReads
	Versions *VersionRequests
	// Request asks storage to report the progress of the cache's watch.
	// Supported reports whether storage can do so at this time.
	Request   func(context.Context) error
	Supported func() bool
	// Unfinished returns the resourceVersion of the last event while more of it
	// may come, 0 if there is none.
	Unfinished func() uint64
	// Watch returns the watch that is open, nil if none is. GaveUp is told of
	// each one that is given up because it hangs.
	Watch  func() Watch
	GaveUp func(after time.Duration)
}

// NewProgressRequester returns a requester that does nothing until Run is called.
func NewProgressRequester(config ProgressConfig) *ProgressRequester {
	return &ProgressRequester{
		config: config, clock: config.Clock, wake: make(chan struct{}, 1),
		hangs: hangDetector{
			clock: config.Clock, current: config.Watch, versions: config.Versions, waiting: config.Waiting,
			gaveUp: config.GaveUp,
		},
	}
}

// EndNow requests the end of the revision that is under way at once. EndNow
// never blocks.
func (p *ProgressRequester) EndNow() {
	p.now.Store(true)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// WatchOut tells the requester that more may come of the revision of the last
// event. WatchOut never blocks.
func (p *ProgressRequester) WatchOut() {
	if p.watching.Load() {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run requests progress as long as there is a reason to. Run returns when the
// context is done.
func (p *ProgressRequester) Run(ctx context.Context) {
	var again <-chan time.Time
	last := uint64(0) // what was unfinished when again was set
	for {
		late := false
		select {
		case <-p.config.Waiting.waiting:
		case <-p.wake:
		case <-again:
			late = true
		case <-ctx.Done():
			return
		}
		unfinished := p.watch()
		stays := unfinished != 0 && (late && unfinished == last || p.now.Load())
		p.now.Store(false)
		if !p.config.Waiting.needProgress() && !stays {
			if late || again == nil || unfinished != last {
				again = p.after(unfinished)
			}
			last = unfinished
			continue
		}
		last = unfinished
		if p.config.Supported() {
			p.hangs.look(ctx)
			p.ask(ctx)
		}
		select {
		case <-p.clock.After(progressSpacing):
		case <-ctx.Done():
			return
		}
		again = p.clock.After(progressInterval - progressSpacing)
	}
}

// watch returns what is unfinished, and notes that WatchOut need not wake the
// requester while something is.
func (p *ProgressRequester) watch() uint64 {
	p.watching.Store(false)
	unfinished := p.config.Unfinished() // after watching is false, so that no event is missed
	p.watching.Store(unfinished != 0)
	return unfinished
}

// after returns when to look again: never if nothing is unfinished.
func (p *ProgressRequester) after(unfinished uint64) <-chan time.Time {
	if unfinished == 0 {
		return nil
	}
	return p.clock.After(progressInterval)
}

func (p *ProgressRequester) ask(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	if err := p.config.Request(bounded); err != nil && ctx.Err() == nil {
		klog.V(4).InfoS("The progress of a watch could not be requested", "err", err)
	}
}
