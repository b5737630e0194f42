// SPDX-License-Identifier: Apache-2.0

package dashboards

import "github.com/kube-watchcache/watchcache/metrics"

// askWho tells where the names of slow clients are: labels with them would have no
// bound.
const askWho = "Metrics say that a client is slow, and how far behind it is. The server itself says which one: open `/debug/watchcache` of the instance, whose table of watchers begins with the slowest, or with a kubeconfig for that server\n\n" +
	"```\nkubectl get --raw '/debug/watchcache?format=json' | jq -r '.caches[].watchers.items[] | select(.state != \"live\") | [.user, .userAgent, .address, .lagSeconds] | @tsv'\n```\n\n" +
	"Clients that were told 410 are gone from there: the cache's own view on the page lists those that have ended, with the reason, and so does the log at `-v=2`.\n"

// watchers answers: is there a slow watcher, how far is it behind, what does it cost.
func watchers() Dashboard {
	return dashboard("watchers", "Watch cache: watchers", "Which caches have slow watchers, how far these are behind, and what becomes of them.", []row{
		{"Who is slow", []panel{
			{
				title: "The slowest watcher, in seconds", unit: "s",
				about:   "Age of the first unsent event of the slowest and the median watcher. Normal: 0. If it reaches the span of the window, the client gets a 410 and lists again.",
				queries: []query{{chosen(metrics.NameWatcherLagSeconds), legendOf("watcher")}},
			},
			{
				title: "The slowest watcher, in events", unit: "short",
				about:   "Lag of the slowest and the median watcher in events.",
				queries: []query{{chosen(metrics.NameWatcherLagEvents), legendOf("watcher")}},
			},
			{title: "The client's name", text: askWho},
			{
				title: "Watchers", unit: "short", stacked: true,
				about:   "Open watches: live ones receive each event as it is dispatched, parked ones replay the window, starting ones receive their initial events. Normal: nearly all live.",
				queries: []query{{chosen(metrics.NameWatchers), legendOf("state")}},
			},
			{
				title: "Parked and resumed", unit: "short",
				about: "Watchers parked, and resumed, in five minutes. Both are equal if clients are slow only for moments, e.g. in a burst. Parked watchers that do not resume expire.",
				queries: []query{
					{growth(metrics.NameParked), "parked " + cacheLegend},
					{growth(metrics.NameResumed), "resumed " + cacheLegend},
				},
			},
			{
				title: "Expired", unit: "short",
				about: "In five minutes: watchers ended because their next event had left the window, so that their clients list again (normal: none), and watchers that continued from below the window because none of their events had left it.",
				queries: []query{
					{growth(metrics.NameExpired), "expired " + cacheLegend},
					{growth(metrics.NameBeyondWindow), "beyond the window " + cacheLegend},
				},
			},
			{
				title: "Watches ended", unit: "short", width: 16,
				about:   "Watches that ended in five minutes, by reason. stopped and deadline are normal; expired, stalled and heavy are slow clients; relist and failed are faults of storage.",
				queries: []query{{growth(metrics.NameEnded, "reason"), legendOf("reason")}},
			},
			{
				title: "Span of the window", unit: "s",
				about:   "How long a slow watcher can stay away and still catch up.",
				queries: []query{{chosen(metrics.NameWindowSeconds), cacheLegend}},
			},
		}},
		{"What an event costs", []panel{
			{
				title: "Candidates for each event", unit: "short",
				about: "Watchers that the index returns for an event, and those whose selector matches. If there are far more candidates than matches, many selectors require no value of a label or field.",
				queries: []query{
					{mean(metrics.NameCandidates, metrics.NameEvents), "candidates " + cacheLegend},
					{mean(metrics.NameMatches, metrics.NameEvents), "matches " + cacheLegend},
				},
			},
			{
				title: "Evaluations", unit: "ops",
				about: "Selectors evaluated per second, and evaluations saved because watchers have the same selector.",
				queries: []query{
					{perSecond(metrics.NameEvaluations), "evaluated " + cacheLegend},
					{perSecond(metrics.NameEvaluationsSaved), "saved " + cacheLegend},
				},
			},
			{
				title: "Serializations", unit: "ops",
				about: "Objects encoded for watchers per second, and encodings shared instead.",
				queries: []query{
					{perSecond(metrics.NameEncodings), "made " + cacheLegend},
					{perSecond(metrics.NameEncodingsShared), "shared " + cacheLegend},
				},
			},
			{
				title: "Lag of dispatch", unit: "s",
				about:   "Time from receiving an event to dispatching it. Slow watchers do not add to it.",
				queries: quantiles(metrics.NameDispatchLag),
			},
			{
				title: "Events in the window", unit: "short",
				about:   "Events kept for resuming watchers.",
				queries: []query{{chosen(metrics.NameWindowEvents), cacheLegend}},
			},
			{
				title: "Memory held for watchers", unit: "bytes",
				about:   "Estimated memory of the window, and of snapshots held by watches that receive initial events.",
				queries: []query{{chosen(metrics.NameBytes, `part=~"window|snapshots"`), legendOf("part")}},
			},
		}},
	})
}
