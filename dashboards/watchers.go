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
				about:   "How long the slowest and the median watcher have not taken what there is for them. Normal: 0. A watcher whose lag reaches the span of the window is told 410, and lists again.",
				queries: []query{{chosen(metrics.NameWatcherLagSeconds), legendOf("watcher")}},
			},
			{
				title: "The slowest watcher, in events", unit: "short",
				about:   "How many events the slowest and the median watcher are behind.",
				queries: []query{{chosen(metrics.NameWatcherLagEvents), legendOf("watcher")}},
			},
			{title: "The client's name", text: askWho},
			{
				title: "Watchers", unit: "short", stacked: true,
				about:   "Open watches: live ones get each event as it comes, parked ones replay from the window, starting ones are sent their initial events. Normal: nearly all live.",
				queries: []query{{chosen(metrics.NameWatchers), legendOf("state")}},
			},
			{
				title: "Parked and resumed", unit: "short",
				about: "Watchers that fell behind in five minutes, and those that caught up. Both are equal when clients are slow for moments only, as in a burst. Parked ones that do not resume expire.",
				queries: []query{
					{growth(metrics.NameParked), "parked " + cacheLegend},
					{growth(metrics.NameResumed), "resumed " + cacheLegend},
				},
			},
			{
				title: "Expired", unit: "short",
				about: "Watchers in five minutes whose events had left the window before they took them, so that their clients list again (normal: none), and those that went on beyond the window, because none of the events that had left it was for them.",
				queries: []query{
					{growth(metrics.NameExpired), "expired " + cacheLegend},
					{growth(metrics.NameBeyondWindow), "beyond the window " + cacheLegend},
				},
			},
			{
				title: "Watches ended", unit: "short", width: 16,
				about:   "Watches that ended in five minutes, by reason. stopped and deadline are normal; expired, stalled, heavy and parked are slow clients; relist and failed are troubles of storage.",
				queries: []query{{growth(metrics.NameEnded, "reason"), legendOf("reason")}},
			},
			{
				title: "Span of the window", unit: "s",
				about:   "For how long a slow watcher may stay away and still catch up.",
				queries: []query{{chosen(metrics.NameWindowSeconds), cacheLegend}},
			},
		}},
		{"What an event costs", []panel{
			{
				title: "Candidates for each event", unit: "short",
				about: "Watchers that the index names for an event, and those of them whose selector matches. When there are far more candidates than matches, many watchers have selectors that pin no label or field to a value.",
				queries: []query{
					{mean(metrics.NameCandidates, metrics.NameEvents), "candidates " + cacheLegend},
					{mean(metrics.NameMatches, metrics.NameEvents), "matches " + cacheLegend},
				},
			},
			{
				title: "Evaluations", unit: "ops",
				about: "Selectors evaluated in a second, and evaluations saved because watchers have the same selector.",
				queries: []query{
					{perSecond(metrics.NameEvaluations), "evaluated " + cacheLegend},
					{perSecond(metrics.NameEvaluationsSaved), "saved " + cacheLegend},
				},
			},
			{
				title: "Serializations", unit: "ops",
				about: "Objects encoded for watchers in a second, and encodings that were shared instead.",
				queries: []query{
					{perSecond(metrics.NameEncodings), "made " + cacheLegend},
					{perSecond(metrics.NameEncodingsShared), "shared " + cacheLegend},
				},
			},
			{
				title: "Lag of dispatch", unit: "s",
				about:   "From when an event was received to when it was dispatched. Slow watchers do not add to it.",
				queries: quantiles(metrics.NameDispatchLag),
			},
			{
				title: "Events in the window", unit: "short",
				about:   "Changes that are kept for watchers that resume.",
				queries: []query{{chosen(metrics.NameWindowEvents), cacheLegend}},
			},
			{
				title: "Memory held for watchers", unit: "bytes",
				about:   "Estimated memory of the window and of the snapshots that watchers hold while they are sent their initial events.",
				queries: []query{{chosen(metrics.NameBytes, `part=~"window|snapshots"`), legendOf("part")}},
			},
		}},
	})
}
