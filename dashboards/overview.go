// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"strings"

	"github.com/kube-watchcache/watchcache/metrics"
)

// anySeries is a metric that every cache has at any time.
const anySeries = metrics.NameAsleep

// overview answers: are the caches healthy, how fresh are they, what do they cost.
func overview() Dashboard {
	return dashboard("overview", "Watch cache: overview", "Whether the caches are healthy and fresh, and what they cost.", []row{
		{"Healthy", []panel{
			{
				title: "State", width: 12,
				about: "One tile for each cache: serving; asleep (not used); not ready (no state yet); paused (storage has an object that it can't deliver). docs/runbook.md has a section for not ready and paused.",
				words: map[string]Word{
					"0": {Text: "not ready", Color: "red", Index: 0}, "1": {Text: "serving", Color: "green", Index: 1},
					"2": {Text: "paused", Color: "red", Index: 2}, "3": {Text: "asleep", Color: "blue", Index: 3},
				},
				queries: []query{{stateOf(), cacheLegend}},
			},
			{
				title: "Alerts that fire", width: 12, unit: "short",
				about:   "Firing alerts of the rules file, by cache. docs/runbook.md has a section for each. Normal: none.",
				queries: []query{{fmt.Sprintf(`sum by (alertname, %s) (ALERTS{alertname=~"%s.*",alertstate="firing",%s})`, strings.Join(identity, ", "), alertPrefix, selection), "{{alertname}} " + cacheLegend}},
			},
			{
				title: "Relists", unit: "short",
				about:   "Full lists of storage in five minutes, by cause. Each cache lists once when it starts. Further lists end watches and load storage.",
				queries: []query{{growth(metrics.NameRelists, "cause"), legendOf("cause")}},
			},
			{
				title: "Storage troubles", unit: "short",
				about: "In five minutes: storage watches that broke and were resumed, and objects or events that storage could not deliver. Rare broken watches are harmless.",
				queries: []query{
					{growth(metrics.NameWatchesBroken), "watches broken " + cacheLegend},
					{growth(metrics.NameUndeliverable), "undeliverable " + cacheLegend},
				},
			},
			{
				title: "Consistency checks", unit: "short",
				about:   "Comparisons of the cache with storage in five minutes, by result. Normal: passed, and never failed.",
				queries: []query{{growth(metrics.NameConsistencyChecks, "result"), legendOf("result")}},
			},
			{
				title: "Shadow", unit: "short",
				about: "With --watch-cache-shadow: comparisons with the shipped cacher in five minutes, by kind; differences (normal: none); and skipped comparisons, by reason.",
				queries: []query{
					{growth(metrics.NameShadowCompared, "kind"), "compared " + legendOf("kind")},
					{growth(metrics.NameShadowDiffered, "kind"), "differed " + legendOf("kind")},
					{growth(metrics.NameShadowSkipped, "reason"), "skipped " + legendOf("reason")},
				},
			},
		}},
		{"Fresh", []panel{
			{
				title: "Storage silence", unit: "s", warn: silenceLimit.Seconds(),
				about:   "Time since storage last sent an event, a progress report or an answer. Up to 15 s is normal for an idle cache.",
				queries: []query{{chosen(metrics.NameStorageSilence), cacheLegend}},
			},
			{
				title: "Lag of dispatch", unit: "s",
				about:   "Time from receiving an event to dispatching it to the watchers. Normal: milliseconds.",
				queries: quantiles(metrics.NameDispatchLag),
			},
			{
				title: "Versions behind storage", unit: "short",
				about:   "Lag of the cache behind the last version that storage reported, in resourceVersions. Writes to other resources count, so an idle cache may lag harmlessly.",
				queries: []query{{fmt.Sprintf("clamp_min(%s - %s, 0)", chosen(metrics.NameStorageResourceVersion), chosen(metrics.NameResourceVersion)), cacheLegend}},
			},
			{
				title: "Version requests", unit: "ops",
				about:   "Requests for storage's current version, by result. Concurrent reads share one.",
				queries: []query{{perSecond(metrics.NameVersionDuration+"_count", "result"), legendOf("result")}},
			},
			{
				title: "Version requests: time", unit: "s", warn: slowVersionRequest.Seconds(),
				about:   "Time that storage takes to return its current version. A consistent read waits at least that long. Normal: milliseconds.",
				queries: quantiles(metrics.NameVersionDuration),
			},
			{
				title: "Span of the window", unit: "s",
				about:   "Span of the window of recent changes. A client that resumes from before must list again. The span is short after a start and for a quiet resource; if events are evicted early, it is too short.",
				queries: []query{{chosen(metrics.NameWindowSeconds), cacheLegend}, {growth(metrics.NameWindowCut), "events cut off in 5m " + cacheLegend}},
			},
		}},
		{"What it costs", []panel{
			{
				title: "Memory", unit: "bytes", stacked: true,
				about:   "Estimated memory of the caches by part: objects, the window, kept serializations, indexes, and snapshots held by watches.",
				queries: []query{{"sum by (part) (" + chosen(metrics.NameBytes) + ")", "{{part}}"}},
			},
			{
				title: "Objects", unit: "short",
				about:   "Objects in each cache.",
				queries: []query{{chosen(metrics.NameObjects), cacheLegend}},
			},
			{
				title: "Events from storage", unit: "ops",
				about:   "Events received from storage per second.",
				queries: []query{{perSecond(metrics.NameEvents, "type"), legendOf("type")}},
			},
			{
				title: "Events to watchers", unit: "ops",
				about: "Events sent to watchers per second, and objects sent as initial events.",
				queries: []query{
					{perSecond(metrics.NameDelivered), "events " + cacheLegend},
					{perSecond(metrics.NameInitial), "initial events " + cacheLegend},
				},
			},
			{
				title: "Time by stage", unit: "s",
				about:   "The 99th percentile of the time of an event in each stage.",
				queries: []query{{quantile("0.99", metrics.NameStageDuration, "stage"), legendOf("stage")}},
			},
			{
				title: "Woken up", unit: "short",
				about:   "Sleeping caches that a request woke, in five minutes. If often, raise the idle timeout.",
				queries: []query{{growth(metrics.NameWokenUp), cacheLegend}},
			},
		}},
	})
}

// stateOf is 0 for a cache that is not ready, 1 for one that serves, 2 for one that
// is paused and 3 for one that sleeps.
func stateOf() string {
	return fmt.Sprintf("(3 * (%s == 1)) or (2 * (%s == 1)) or %s", chosen(metrics.NameAsleep), chosen(metrics.NamePaused), chosen(metrics.NameReady))
}

// growth is by how much a counter grew in five minutes, by cache and labels.
func growth(metric metrics.Name, labels ...string) string {
	return fmt.Sprintf("sum %s (\n  %s\n)", by(labels...), grown(chosen(metric), "5m"))
}
