// SPDX-License-Identifier: Apache-2.0

package freshness

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

const (
	// progressInterval is the time between progress requests while reads wait. A new read requests
	// another at once, but progressSpacing after the last one, shared by all that arrive in
	// between.
	progressInterval = 100 * time.Millisecond
	progressSpacing  = 5 * time.Millisecond
	// If the mean time between changes, over rateInterval or longer, is at most busyGap, a change
	// soon says as much as a report. A read waits for it for twice the mean, at most
	// nextChangeWait, and requests are at least progressInterval apart. With a change every 100 ms,
	// one read in four needs no request.
	busyGap        = progressInterval
	nextChangeWait = 25 * time.Millisecond
	rateInterval   = 250 * time.Millisecond
	// progressTimeout bounds one request, which blocks until its context ends if etcd is
	// unreachable.
	progressTimeout = 250 * time.Millisecond
	// silentPause and silentPauseMax bound the pause between probes of a silent storage.
	silentPause    = 5 * time.Second
	silentPauseMax = 5 * time.Minute
)

// ProgressRequester requests progress reports of the cache's watch. See the package comment.
type ProgressRequester struct {
	config ProgressConfig
	hangs  hangDetector

	// wake wakes Run for an event of an incomplete revision, unless revisionOpen is true.
	wake         chan struct{}
	revisionOpen atomic.Bool
	// now is true if progress must be requested although no read waits.
	now atomic.Bool
	// changes counts changes of the state. counted is its value when Run last looked, and gap the
	// mean time between changes before that, 0 without any.
	changes atomic.Uint64
	counted uint64
	looked  time.Time
	gap     time.Duration
	// asked is the time of the last request.
	asked time.Time

	// pause is the next pause between probes, and reported the time of the last successful probe.
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
	// ReportDelay is the time that a slow storage takes to report progress, or 0.
	ReportDelay time.Duration
}

// Storage is the part of the storage that a ProgressRequester uses.
type Storage interface {
	// CurrentWatch returns the open watch that feeds the cache, or nil.
	CurrentWatch() Watch
	// ReportsProgress reports whether storage supports progress requests at this time.
	ReportsProgress() bool
	// RequestProgress requests a progress report for the watch.
	RequestProgress(ctx context.Context) error
	// ProbeProgress reports whether storage reports the progress of another watch.
	ProbeProgress(ctx context.Context) bool
	// WatchHung records that the watch is given up after waited without progress.
	WatchHung(waited time.Duration)
}

// State is the state fed by the watch.
type State interface {
	// Unfinished returns the resourceVersion of the last event while more events of that version
	// may follow, or 0.
	Unfinished() uint64
}

// Silence is the flag of a storage that answers requests but reports no progress.
type Silence interface {
	Silent() bool
	SetSilent(silent bool)
}

// NewProgressRequester returns a requester. The caller must call Run.
func NewProgressRequester(config ProgressConfig) *ProgressRequester {
	p := &ProgressRequester{config: config, looked: config.Clock.Now(), wake: make(chan struct{}, 1)}
	p.hangs = hangDetector{ProgressConfig: &p.config, markSilent: p.markSilent}
	return p
}

// markSilent marks storage silent. The pause keeps doubling if the last silence ended recently.
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
			w.GiveUp() // the watch hangs rather than storage
		}
	}
}

// EndNow requests the end of the current revision. It never blocks.
func (p *ProgressRequester) EndNow() {
	p.now.Store(true)
	p.wakeUp()
}

// Changed counts a change of the state. It never blocks.
func (p *ProgressRequester) Changed() { p.changes.Add(1) }

// RevisionOpen reports that the last event's revision may be incomplete. It never blocks.
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

// Run requests progress until ctx is done.
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

// awaitChange returns how much longer a read that began to wait at began should wait for the next
// change instead of a report: 0 if the resource rarely changes.
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

// checkRevision returns the unfinished resourceVersion, and silences RevisionOpen while there is
// one.
func (p *ProgressRequester) checkRevision() uint64 {
	p.revisionOpen.Store(false)
	unfinished := p.config.State.Unfinished() // after the store, so that no event is missed
	p.revisionOpen.Store(unfinished != 0)
	return unfinished
}

// ask requests progress. Storage's owner handles errors.
func (p *ProgressRequester) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	_ = p.config.Storage.RequestProgress(ctx)
}
