// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/kube-watchcache/watchcache/metrics"

// text advises a reader of docs/metrics.md. Servers do not link it.
type text struct {
	purpose string // why to look at the metric, unless Help says so
	normal  string // the usual values
	high    string // what to do if it is high, or if a gauge that should be 1 isn't
}

var texts = map[metrics.Name]text{
	metrics.NameReady: {
		normal: "1, except in the first seconds. A sleeping cache does not export it.",
		high:   "At 0 for longer than a list takes: read the log and the status, and check that storage answers.",
	},
	metrics.NamePaused: {
		normal: "0.",
		high:   "At 1: repair or delete the object that the log names; the cache then recovers by itself.",
	},
	metrics.NameAsleep: {
		purpose: "Distinguishes a sleeping cache from a missing one.",
		normal:  "0, or 1 for unused resources with LazyStart or IdleTimeout.",
	},
	metrics.NameWokenUp: {
		purpose: "The cost of an idle timeout: each time, the cache lists storage.",
		normal:  "A few times a day.",
		high:    "Several times an hour: raise IdleTimeout for this resource.",
	},
	metrics.NameObjects: {
		normal: "The number of objects in storage.",
		high:   "Look for the client that creates the objects.",
	},
	metrics.NameIndexes: {
		normal: "A few.",
		high:   "At AdaptiveIndexes: declare some of them.",
	},
	metrics.NameBytes: {
		normal: "window and snapshots at most WindowBytes, encodings at most EncodingBytes.",
		high:   "objects: the resource is large. window: many or large changes; lower WindowBytes or EventsHistoryWindow. snapshots: clients read initial events slowly; find them on the debug page.",
	},
	metrics.NameWindowEvents: {
		normal: "The rate of changes times EventsHistoryWindow, and at least 128 if there were that many.",
	},
	metrics.NameWindowSeconds: {
		purpose: "How long a client can be away and still resume.",
		normal:  "EventsHistoryWindow, or more for a quiet resource; growing from 0 after a start or a relist.",
		high:    "If it stays below EventsHistoryWindow after a start, raise WindowBytes: it is too small for the rate of changes, and watches expire.",
	},
	metrics.NameWindowCut: {
		normal: "0, and a few thousand in a burst.",
		high:   "Growing for minutes: raise WindowBytes, or find the client that writes so much. Clients that resume from further back list again.",
	},
	metrics.NameInitialSnapshots: {
		purpose: "How many clients list through watches at the same time.",
		normal:  "0, and a few while clients start.",
		high:    "Many for minutes: clients do not read their initial events, and their watches end after a minute.",
	},
	metrics.NameResourceVersion: {
		purpose: "Compare it with watchcache_storage_resource_version.",
		normal:  "Grows with each change of the resource.",
		high:    "If it stops while storage's advances, the cache is stale: see watchcache_storage_silence_seconds and watchcache_paused.",
	},
	metrics.NameOldestResourceVersion: {
		normal: "Below watchcache_resource_version by the window.",
		high:   "If it jumps to the present, the cache has relisted; see watchcache_relists_total.",
	},
	metrics.NameStorageResourceVersion: {
		normal: "At or slightly above watchcache_resource_version: etcd's versions count changes of all resources, and a cache requests them only when it needs them.",
		high:   "Ahead of watchcache_resource_version for seconds while consistent reads wait: the storage watch lags or hangs.",
	},
	metrics.NameEvents: {
		purpose: "The rate of changes; BOOKMARK counts progress reports.",
		normal:  "As many as there are writes.",
		high:    "Find the client that writes so often, usually a controller that updates a status in a loop.",
	},
	metrics.NameDispatchLag: {
		purpose: "How much later than the cache its watchers receive a change.",
		normal:  "Below 1 ms; up to DispatchBudget while watchers are slow.",
		high:    "The dispatcher is short of CPU, has very many watchers for each event, or waits for slow ones: see watchcache_dispatch_matches_total and watchcache_watchers_parked_total; lower DispatchBudget.",
	},
	metrics.NameStageDuration: {
		normal: "feed: some 10 us. queue: below 1 ms. dispatch: 1 us plus about 0.3 us for each receiving watcher.",
		high:   "feed: KeyFunc, GetAttrs or an IndexerFunc is slow. queue: the dispatcher is busy; see dispatch. dispatch: many watchers for each event, or slow ones.",
	},
	metrics.NameCandidates: {
		purpose: "Compared with watchcache_dispatch_matches_total: how well watchers are indexed.",
		normal:  "Slightly more than the matches.",
		high:    "Many candidates for each match: add the selected label to LabelIndexes, or the field to Indexers, unless watchers select with !=.",
	},
	metrics.NameMatches: {
		purpose: "Divided by the events, how many watchers a change affects.",
		normal:  "Depends on what clients watch.",
		high:    "Let clients select what they need: many watch the whole resource.",
	},
	metrics.NameEvaluations: {
		normal: "The number of different queries among the candidates.",
		high:   "See watchcache_dispatch_candidates_total.",
	},
	metrics.NameEvaluationsSaved: {
		normal: "Most of the candidates if many clients run the same program.",
	},
	metrics.NameDelivered: {
		normal: "The matches, plus events replayed to parked watchers.",
		high:   "See watchcache_dispatch_matches_total.",
	},
	metrics.NameInitial: {
		normal: "Rises while clients start.",
		high:   "Clients restart their watches repeatedly: see watchcache_watchers_ended_total for the reason.",
	},
	metrics.NameEncodings: {
		normal: "One for each event and watched format, and as many for initial events.",
		high:   "More than events times formats: raise EncodingBytes, because replayed events are encoded again.",
	},
	metrics.NameEncodingsShared: {
		normal: "Nearly all if many watchers get the same events.",
	},
	metrics.NameWatchers: {
		normal: "Nearly all live.",
		high:   "parked: slow clients; the debug page names them. starting, for longer than seconds: clients that do not read their initial events.",
	},
	metrics.NameWatcherLagEvents: {
		purpose: "Compare it with watchcache_window_events.",
		normal:  "0.",
		high:    "worst: one client is slow, and expires when its lag exceeds the window. median: most clients are slow; the server is short of CPU or network.",
	},
	metrics.NameWatcherLagSeconds: {
		purpose: "Compare it with watchcache_window_seconds.",
		normal:  "0.",
		high:    "See watchcache_watcher_lag_events.",
	},
	metrics.NameParked: {
		normal: "A few during a burst of changes, each resumed afterwards.",
		high:   "Clients are too slow for the rate of changes: find them on the debug page. A larger WatchBuffer helps with short bursts.",
	},
	metrics.NameResumed: {
		normal: "Like watchcache_watchers_parked_total.",
		high:   "Below the parked ones for minutes: watchers stay behind and will expire.",
	},
	metrics.NameExpired: {
		purpose: "Clients that get 410 and must list.",
		normal:  "0.",
		high:    "Raise WindowBytes or EventsHistoryWindow, or make the clients faster: the window is too short for them.",
	},
	metrics.NameBeyondWindow: {
		purpose: "Quiet clients that need not list although others filled the window.",
		normal:  "0, or a few if some namespaces or index values change much more often than others.",
		high:    "The window is short for the rate of changes: watches of everything that resume from there get 410.",
	},
	metrics.NameEnded: {
		normal: "stopped and deadline.",
		high:   "expired, stalled, heavy: slow clients. relist: see watchcache_relists_total. failed: see watchcache_paused.",
	},
	metrics.NameReads: {
		normal: "Almost none delegated or refused.",
		high:   "delegate: clients request versions that have left the window, or the cache is stale. refuse: the cache is not ready, or more fallback reads arrived than MaxFallbackLists allows.",
	},
	metrics.NameReadDuration: {
		purpose: "Excludes encoding and the network. watchcache_reads_total counts all reads.",
		normal:  "latest: microseconds for a GET, about 10 ns for each object of a LIST. consistent: plus the time of a version request.",
		high:    "consistent: see watchcache_version_request_duration_seconds and watchcache_read_wait_seconds. latest: LISTs of many objects; see watchcache_list_evaluated_objects_total.",
	},
	metrics.NameReadWait: {
		normal: "A few milliseconds.",
		high:   "The storage watch lags, or storage does not report progress: check its load, and the WatchProgress option.",
	},
	metrics.NameFallbackReads: {
		normal: "0.",
		high:   "Check watchcache_storage_silence_seconds and storage's load. refused: clients get 429 and retry.",
	},
	metrics.NameReadsByIndex: {
		normal: "Selective requests use an index.",
		high:   "keys, with many objects evaluated for each one returned: selectors require no indexed label or field.",
	},
	metrics.NameEvaluated: {
		purpose: "Compared with watchcache_list_returned_objects_total: how selective LISTs are served.",
		normal:  "Slightly more than the returned ones.",
		high:    "Many times the returned ones: see watchcache_reads_by_index_total.",
	},
	metrics.NameListed: {
		normal: "Depends on what clients list.",
		high:   "Clients list everything repeatedly: let them watch, or use limits.",
	},
	metrics.NameVersionRequests: {
		normal: "At most one per round trip, however many reads wait.",
		high:   "Storage answers late, so the cache sends further requests beside the slow ones.",
	},
	metrics.NameVersionDuration: {
		purpose: "How fast storage answers, and when it did not.",
		normal:  "ok, in a few milliseconds.",
		high:    "unanswered and error: storage is down or unreachable. superseded, often: one of its members is slow or paused. abandoned, without unanswered: clients cancel early.",
	},
	metrics.NameVersionRequestReads: {
		purpose: "Divided by watchcache_version_requests_total: how many reads share a request.",
		normal:  "The number of consistent reads.",
	},
	metrics.NameStorageSilence: {
		normal: "Below 65 s: the cache requests storage's version at least every minute.",
		high:   "Above 75 s: check that storage runs and is reachable. Reads without a resourceVersion fail; the cache serves others.",
	},
	metrics.NameRelists: {
		purpose: "The most expensive operation of a cache: all its watches restart.",
		normal:  "1, with the cause start.",
		high:    "expired, behind: storage was away for longer than it keeps history. inconsistent, restored: storage was restored from a backup, or lost an event; see the log. change, undeliverable: see watchcache_paused.",
	},
	metrics.NameWatchesBroken: {
		normal: "A few when a member of storage restarts.",
		high:   "Check storage's members and the network to them.",
	},
	metrics.NameUndeliverable: {
		normal: "0.",
		high:   "See watchcache_paused.",
	},
	metrics.NameConsistencyChecks: {
		normal: "passed, every ConsistencyCheckInterval.",
		high:   "failed: the cache differed and relisted; report it with the log. error: storage can't be listed.",
	},
	metrics.NameShadowCompared: {
		purpose: "How significant the absence of differences is.",
		normal:  "The fraction of requests in the flag. None without the flag.",
	},
	metrics.NameShadowDiffered: {
		normal: "None.",
		high:   "Do not switch over. Report it with the log, which has the versions.",
	},
	metrics.NameShadowSkipped: {
		normal: "Few compared with watchcache_shadow_compared_total.",
		high:   "room: lower --watch-cache-shadow. excused: this cache was not ready, or fell behind.",
	},
}
