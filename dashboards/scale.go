// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"time"
)

// The limits of the rules that dashboards show as well.
const (
	// silenceLimit is four times the interval in which a cache at rest asks its
	// storage for something.
	silenceLimit = time.Minute
	// slowVersionRequest is a third of the time that a LIST waits at most. The
	// duration is a bound of the histogram's buckets.
	slowVersionRequest = time.Second
	// refusedShare is the share of refused reads that clients notice.
	refusedShare = 0.01
)

// Scale is how many seconds of the rules pass in one second. Rules at scale 1 are
// those for production; a test takes the same rules at a larger one, so that what
// needs 15 minutes fires within one. The scale applies to intervals and ranges and
// to the silence of storage, and not to the latency of a request.
type Scale float64

// RealTime is the scale of production.
const RealTime Scale = 1

// Of returns a duration of the rules as Prometheus reads it.
func (s Scale) Of(d time.Duration) string {
	scaled := time.Duration(float64(d) / float64(s)).Round(time.Millisecond)
	switch {
	case scaled == 0:
		return "0s"
	case scaled%time.Hour == 0:
		return fmt.Sprintf("%dh", scaled/time.Hour)
	case scaled%time.Minute == 0:
		return fmt.Sprintf("%dm", scaled/time.Minute)
	case scaled%time.Second == 0:
		return fmt.Sprintf("%ds", scaled/time.Second)
	default:
		return fmt.Sprintf("%dms", scaled/time.Millisecond)
	}
}

// Seconds returns a duration of the rules as a number for an expression.
func (s Scale) Seconds(d time.Duration) float64 { return d.Seconds() / float64(s) }
