// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"

	"github.com/kube-watchcache/watchcache/metrics"
)

// reads answers: where are reads served, what do they wait for, which are refused.
func reads() Dashboard {
	return dashboard("reads", "Watch cache: reads", "Where GET and LIST are served, what they wait for, and what they cost.", []row{
		{"Where they are served", []panel{
			{
				title: "Reads by decision", unit: "ops", stacked: true, width: 12,
				about:   "GET and LIST per second by answer: from the latest state, as fresh as storage (consistent), at an exact version, by a continue token, from storage (delegate), or refused so that the client retries.",
				queries: []query{{perSecond(metrics.NameReads, "verb", "decision"), legendOf("verb", "decision")}},
			},
			{
				title: "Answered from memory", unit: "percentunit", width: 12,
				about:   "The fraction of reads that the cache answered. Normal: close to 1.",
				queries: []query{{"1 - (" + share(metrics.NameReads, `decision=~"delegate|refuse"`) + ")", cacheLegend}},
			},
			{
				title: "Refused", unit: "percentunit", warn: refusedShare,
				about:   "The fraction of reads that were refused: the client gets an error and retries. Normal: none.",
				queries: []query{{share(metrics.NameReads, `decision="refuse"`), cacheLegend}},
			},
			{
				title: "Fallback reads", unit: "short",
				about:   "Consistent reads in five minutes that timed out waiting for a fresh cache, by answer: from storage, or refused beyond MaxFallbackLists. Normal: none.",
				queries: []query{{growth(metrics.NameFallbackReads, "answer"), legendOf("answer")}},
			},
			{
				title: "Indexes", unit: "ops",
				about:   "LISTs per second by index (other: an adaptive one), and the number of adaptive indexes.",
				queries: []query{{perSecond(metrics.NameReadsByIndex, "index"), legendOf("index")}, {chosen(metrics.NameIndexes), "built: " + cacheLegend}},
			},
		}},
		{"What they wait for", []panel{
			{
				title: "Time of a read", unit: "s", width: 12,
				about:   "The 99th percentile by verb and decision, including the wait.",
				queries: []query{{quantile("0.99", metrics.NameReadDuration, "verb", "decision"), legendOf("verb", "decision")}},
			},
			{
				title: "Wait for freshness", unit: "s", width: 12,
				about:   "Time that reads wait for a fresh cache. Normal: the time of a version request.",
				queries: quantiles(metrics.NameReadWait),
			},
			{
				title: "Version requests: time", unit: "s", warn: slowVersionRequest.Seconds(),
				about:   "Time that storage takes to return its current version.",
				queries: quantiles(metrics.NameVersionDuration),
			},
			{
				title: "Reads that shared a version request", unit: "short",
				about:   "Reads per version request. It grows with the load, so the load on storage does not.",
				queries: []query{{mean(metrics.NameVersionRequestReads, metrics.NameVersionDuration+"_count"), cacheLegend}},
			},
			{
				title: "Storage silence", unit: "s", warn: silenceLimit.Seconds(),
				about:   "Time since storage last sent anything. While it grows, consistent reads time out.",
				queries: []query{{chosen(metrics.NameStorageSilence), cacheLegend}},
			},
		}},
		{"What they cost", []panel{
			{
				title: "Objects evaluated for each returned", unit: "short", width: 12,
				about:   "Objects that LISTs evaluated for each returned one. Normal: slightly above 1. Far more: a selector without an index.",
				queries: []query{{mean(metrics.NameEvaluated, metrics.NameListed), cacheLegend}},
			},
			{
				title: "Objects returned", unit: "ops", width: 12,
				about:   "Objects that LISTs returned from the cache per second.",
				queries: []query{{perSecond(metrics.NameListed), cacheLegend}},
			},
		}},
	})
}

// share returns which part of a counter's growth is that of the series that the
// matcher matches; 0 while there are none of these.
func share(metric metrics.Name, matcher string) string {
	all := perSecond(metric)
	some := fmt.Sprintf("sum %s (rate(%s[$__rate_interval]))", byCache, chosen(metric, matcher))
	return "(" + some + " or 0 * " + all + ")\n/\n" + all
}
