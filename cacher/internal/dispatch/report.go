// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Report describes a watch that was parked or has ended.
type Report struct {
	// Status is the watch's at that time.
	Status
	// Reason is why the watch has ended; NotEnded: it was parked.
	Reason metrics.EndReason
}

// NotEnded is the reason of watches that go on.
const NotEnded metrics.EndReason = 0

// report is a Report before anyone wants to read it.
type report struct {
	row    row
	reason metrics.EndReason
}

// described returns the exported form of a report. It takes the state's lock.
func (f *Fanout) described(r report) Report {
	stats := f.replays.state.Stats()
	return Report{Status: f.describe(&r.row, stats), Reason: r.reason}
}

// Age returns for how long the watch has been open.
func (r *Report) Age(now time.Time) time.Duration { return max(0, now.Sub(r.Started)) }
