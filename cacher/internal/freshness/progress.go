// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

const (
	// progressInterval is the time between two progress requests while reads
	// go on waiting, and progressSpacing the least time between any two: a
	// read that begins to wait asks again, together with all who do so within
	// the spacing.
	progressInterval = 100 * time.Millisecond
	progressSpacing  = 5 * time.Millisecond
	// A resource whose changes come at most busyGap apart, in the mean over rateInterval
	// or longer, is about to change again, and the change says as much as a report: a read
	// waits for it twice the mean time, at most nextChangeWait, and requests are at least
	// progressInterval apart. With changes each 100 ms, one read in four needs no request.
	busyGap        = progressInterval
	nextChangeWait = 25 * time.Millisecond
	rateInterval   = 250 * time.Millisecond
	// progressTimeout bounds one request, which the client of an etcd that it
	// cannot reach would hold for as long as its context allows.
	progressTimeout = 250 * time.Millisecond
	// silentPause and silentPauseMax bound the time until a silent storage is tried
	// again. The time doubles with each try in vain.
	silentPause    = 5 * time.Second
	silentPauseMax = 5 * time.Minute
)

// ProgressRequester asks storage to report the progress of the cache's watch while
// reads wait: an idle resource gets no events, so that without a report the cache could
// not know that it is fresh. It asks as well when nothing has followed an event for
// progressInterval, so that the cache may show the event: more could belong to its
// revision. Reads of a resource that changes all the time wait for its next change first.
type ProgressRequester struct {
	config ProgressConfig
	// hangs looks at the watch before each request.
	hangs hangDetector

	// wake wakes run up for an event of an incomplete revision; not needed while
	// revisionOpen is true.
	wake         chan struct{}
	revisionOpen atomic.Bool
	// now is true when progress must be requested although no read waits.
	now atomic.Bool
	// changes counts those of the state. counted is how many there were when Run last
	// looked, and gap the mean time between two of them until then, 0 without any.
	changes atomic.Uint64
	counted uint64
	looked  time.Time
	gap     time.Duration
	// asked is when Run's goroutine requested last.
	asked time.Time

	// pause is the time until a silent storage is tried again, and reported when the last
	// try succeeded.
	pause    time.Duration
	reported time.Time
}

// ProgressConfig holds the parts that a ProgressRequester needs.
type ProgressConfig struct {
	Clock    clock.WithTicker
	Waiting  *WaitingReads
	Versions *VersionRequests
	Storage  Storage
	State    State
	Silence  Silence
	// ReportDelay is how long a slow storage takes to report progress, or 0.
	ReportDelay time.Duration
}

// Storage is the storage as a ProgressRequester uses it.
type Storage interface {
	// CurrentWatch returns the open watch that feeds the cache, or nil.
	CurrentWatch() Watch
	// ReportsProgress reports whether storage supports progress requests at this time.
	ReportsProgress() bool
	// RequestProgress requests a progress report for the watch.
	RequestProgress(ctx context.Context) error
	// ProbeProgress reports whether storage reports the progress of another watch.
	ProbeProgress(ctx context.Context) bool
	// WatchHung notes that the watch is given up after it made no progress for a time.
	WatchHung(waited time.Duration)
}

// State is the state that the watch feeds.
type State interface {
	// Unfinished returns the resourceVersion of the last event while more events of that
	// version may follow, or 0.
	Unfinished() uint64
}

// Silence is whether storage answers requests and does not report progress.
type Silence interface {
	Silent() bool
	SetSilent(silent bool)
}

// NewProgressRequester returns a requester that does nothing until Run is called.
func NewProgressRequester(config ProgressConfig) *ProgressRequester {
	p := &ProgressRequester{config: config, looked: config.Clock.Now(), wake: make(chan struct{}, 1)}
	p.hangs = hangDetector{ProgressConfig: &p.config, markSilent: p.markSilent}
	return p
}

// markSilent marks storage silent. If it falls silent again soon, the pause goes on doubling.
func (p *ProgressRequester) markSilent() {
	if p.pause == 0 || p.config.Clock.Since(p.reported) > silentPauseMax {
		p.pause = silentPause
	}
	p.config.Silence.SetSilent(true)
}

// awaitReporting blocks until storage reports progress again.
func (p *ProgressRequester) awaitReporting(ctx context.Context) {
	for p.config.Silence.Silent() {
		select {
		case <-p.config.Clock.After(p.pause):
		case <-ctx.Done():
			return
		}
		p.pause = min(2*p.pause, silentPauseMax)
		if !p.config.Storage.ProbeProgress(ctx) {
			continue
		}
		p.reported = p.config.Clock.Now()
		p.config.Silence.SetSilent(false)
		if w := p.config.Storage.CurrentWatch(); w != nil && p.config.Versions.Highest() > p.config.Waiting.At() {
			w.GiveUp() // the watch hung, and not storage
		}
	}
}

// EndNow requests the end of the revision that is under way at once. It never blocks.
func (p *ProgressRequester) EndNow() {
	p.now.Store(true)
	p.wakeUp()
}

// Changed notes that the state has taken a change. It never blocks.
func (p *ProgressRequester) Changed() { p.changes.Add(1) }

// RevisionOpen notifies the requester that the last event's revision may be incomplete. It
// never blocks.
func (p *ProgressRequester) RevisionOpen() {
	if !p.revisionOpen.Load() {
		p.wakeUp()
	}
}

func (p *ProgressRequester) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run requests progress as long as there is a reason to. It returns when the
// context is done.
func (p *ProgressRequester) Run(ctx context.Context) {
	var again <-chan time.Time
	last := uint64(0) // unfinished, when again was set
	for {
		p.awaitReporting(ctx)
		late := false
		select {
		case <-p.config.Waiting.waiting:
		case <-p.wake:
		case <-again:
			late = true
		case <-ctx.Done():
			return
		}
		unfinished := p.checkRevision()
		stays := unfinished != 0 && (late && unfinished == last || p.now.Load())
		p.now.Store(false)
		began, waits := p.config.Waiting.needProgress()
		if !waits && !stays {
			switch {
			case unfinished == 0:
				again = nil
			case late || again == nil || unfinished != last:
				again = p.config.Clock.After(progressInterval)
			}
			last = unfinished
			continue
		}
		last = unfinished
		if left := p.awaitChange(began); left > 0 && !stays {
			again = p.config.Clock.After(left)
			continue
		}
		if p.config.Storage.ReportsProgress() {
			p.hangs.look(ctx)
			p.asked = p.config.Clock.Now()
			p.ask(ctx)
		}
		select {
		case <-p.config.Clock.After(progressSpacing):
		case <-ctx.Done():
			return
		}
		again = p.config.Clock.After(progressInterval - progressSpacing)
	}
}

// awaitChange returns how much longer a read that began to wait then waits for the next
// change before a report is worth its request: not at all if the resource changes seldom.
func (p *ProgressRequester) awaitChange(began time.Time) time.Duration {
	if since := p.config.Clock.Since(p.looked); since >= rateInterval {
		changes := p.changes.Load()
		p.gap = 0
		if n := changes - p.counted; n != 0 {
			p.gap = since / time.Duration(n)
		}
		p.counted, p.looked = changes, p.looked.Add(since)
	}
	if p.gap == 0 || p.gap > busyGap {
		return 0
	}
	return max(min(2*p.gap, nextChangeWait)-p.config.Clock.Since(began), progressInterval-p.config.Clock.Since(p.asked))
}

// checkRevision returns the unfinished resourceVersion, and notes that RevisionOpen need not wake the
// requester while something is.
func (p *ProgressRequester) checkRevision() uint64 {
	p.revisionOpen.Store(false)
	unfinished := p.config.State.Unfinished() // after revisionOpen is false, so that no event is missed
	p.revisionOpen.Store(unfinished != 0)
	return unfinished
}

// ask requests progress. The storage's owner notes an error.
func (p *ProgressRequester) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	_ = p.config.Storage.RequestProgress(ctx)
}
