// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"time"

	"github.com/kube-watchcache/watchcache/metrics"
)

// The names of the recorded series. All have the labels of identity.
const (
	recordTrouble     = "watchcache:storage_trouble:bool"
	recordRefused     = "watchcache:reads_refused:ratio2m"
	recordSlow        = "watchcache:version_requests_slow:ratio2m"
	recordRelists     = "watchcache:relists:increase15m"
	recordExpired     = "watchcache:watchers_expired:increase15m"
	recordFailed      = "watchcache:consistency_failed:increase15m"
	recordUndelivered = "watchcache:storage_undeliverable:increase15m"
	recordCut         = "watchcache:window_cut_events:increase2m"
)

// recording is a series that alerts are made of.
type recording struct {
	record string
	expr   func(Scale) string
}

// recordings returns the recording rules, in the order in which they are evaluated.
func recordings() []recording {
	return []recording{
		{recordUndelivered, growthOf(15*time.Minute, string(metrics.NameUndeliverable))},
		{recordRelists, growthOf(15*time.Minute, string(metrics.NameRelists)+`{cause!="start"}`)},
		{recordExpired, growthOf(15*time.Minute, string(metrics.NameExpired))},
		{recordFailed, growthOf(15*time.Minute, string(metrics.NameConsistencyChecks)+`{result="failed"}`)},
		{recordCut, growthOf(2*time.Minute, string(metrics.NameWindowCut))},
		{recordTrouble, storageTrouble},
		{recordRefused, refusedReads},
		{recordSlow, slowVersionRequests},
	}
}

// storageTrouble is 1 for a cache that can't follow its storage, for whatever
// reason. The alerts of these reasons say why; those of consequences are silent
// meanwhile, so that one fault fires one alert.
func storageTrouble(s Scale) string {
	return fmt.Sprintf("group %s (\n  %s == 0\n  or %s == 1\n  or %s > %v\n)",
		byCache, metrics.NameReady, metrics.NamePaused, metrics.NameStorageSilence, s.Seconds(silenceLimit))
}

// refusedReads is the share of the reads that were refused.
func refusedReads(s Scale) string {
	window := s.Of(2 * time.Minute)
	return fmt.Sprintf("sum %[1]s (rate(%[2]s{decision=\"refuse\"}[%[3]s]))\n/\nsum %[1]s (rate(%[2]s[%[3]s]))",
		byCache, metrics.NameReads, window)
}

// slowVersionRequests is the share of the version requests that storage did not
// answer within a second. The bound of a bucket is written in two ways: the format
// OpenMetrics, which Prometheus asks for, has 1.0 for 1. Those that another request
// overtook do not count, because no read waited for them, nor do those that were
// given up for another reason than that storage did not answer.
func slowVersionRequests(s Scale) string {
	const template = `1 - (
  sum %[1]s (rate(%[2]s_bucket{result="ok",le=~"%[4]v|%.1[4]f"}[%[3]s]))
  or 0 * sum %[1]s (rate(%[2]s_count{result!~"superseded|abandoned"}[%[3]s]))
)
/
sum %[1]s (rate(%[2]s_count{result!~"superseded|abandoned"}[%[3]s]))`
	return fmt.Sprintf(template, byCache, metrics.NameVersionDuration, s.Of(2*time.Minute), slowVersionRequest.Seconds())
}

// growthOf is by how much a counter grew in a window, by cache.
func growthOf(window time.Duration, counter string) func(Scale) string {
	return func(s Scale) string {
		return fmt.Sprintf("sum %s (\n  %s\n)", byCache, grown(counter, s.Of(window)))
	}
}
