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
				about:   "GET and LIST in a second by the way they were answered: from the latest state, as fresh as storage (consistent), at an exact version, by a continue token, by storage (delegate), or refused with an error that tells the client to retry.",
				queries: []query{{perSecond(metrics.NameReads, "verb", "decision"), legendOf("verb", "decision")}},
			},
			{
				title: "Answered from memory", unit: "percentunit", width: 12,
				about:   "The share of the reads that neither storage answered nor the cache refused. Normal: close to 1.",
				queries: []query{{"1 - (" + share(metrics.NameReads, `decision=~"delegate|refuse"`) + ")", cacheLegend}},
			},
			{
				title: "Refused", unit: "percentunit", warn: refusedShare,
				about:   "The share of the reads that were refused: the client gets an error and retries. Normal: none.",
				queries: []query{{share(metrics.NameReads, `decision="refuse"`), cacheLegend}},
			},
			{
				title: "Fallback reads", unit: "short",
				about:   "Consistent reads in five minutes for which the cache did not become fresh in time, by what became of them: passed on to storage, or refused because too many were. Normal: none.",
				queries: []query{{growth(metrics.NameFallbackReads, "answer"), legendOf("answer")}},
			},
			{
				title: "Indexes", unit: "ops",
				about:   "LISTs in a second by the index that narrowed them; other: one that the cache has built itself. And how many of these there are.",
				queries: []query{{perSecond(metrics.NameReadsByIndex, "index"), legendOf("index")}, {chosen(metrics.NameIndexes), "built: " + cacheLegend}},
			},
		}},
		{"What they wait for", []panel{
			{
				title: "Time of a read", unit: "s", width: 12,
				about:   "The 99th percentile by verb and decision, the wait included.",
				queries: []query{{quantile("0.99", metrics.NameReadDuration, "verb", "decision"), legendOf("verb", "decision")}},
			},
			{
				title: "Wait for freshness", unit: "s", width: 12,
				about:   "How long reads wait for the cache to become as fresh as they need it. Normal: the time of a version request.",
				queries: quantiles(metrics.NameReadWait),
			},
			{
				title: "Version requests: time", unit: "s", warn: slowVersionRequest.Seconds(),
				about:   "How long storage takes to tell its current version.",
				queries: quantiles(metrics.NameVersionDuration),
			},
			{
				title: "Reads that shared a version request", unit: "short",
				about:   "How many reads, on average, were answered by one version request. It grows with the load, so that storage's share of it does not.",
				queries: []query{{mean(metrics.NameVersionRequestReads, metrics.NameVersionDuration+"_count"), cacheLegend}},
			},
			{
				title: "Storage silence", unit: "s", warn: silenceLimit.Seconds(),
				about:   "Time since the cache last heard of its storage. Reads wait in vain while it grows.",
				queries: []query{{chosen(metrics.NameStorageSilence), cacheLegend}},
			},
		}},
		{"What they cost", []panel{
			{
				title: "Objects evaluated for each returned", unit: "short", width: 12,
				about:   "How many objects LISTs looked at for each that they returned. Normal: a little above 1. Far more: a selector without an index.",
				queries: []query{{mean(metrics.NameEvaluated, metrics.NameListed), cacheLegend}},
			},
			{
				title: "Objects returned", unit: "ops", width: 12,
				about:   "Objects that LISTs returned from the cache in a second.",
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
