// SPDX-License-Identifier: Apache-2.0

package metrics

// specs is the list of metrics, in the order of the documentation.
var specs = []spec{
	{NameReady, Gauge, func(v view) any { return v.ready[:] }, Description{
		Help: "1 while the cache has its state and serves, otherwise 0.",
	}},
	{NamePaused, Gauge, func(v view) any { return v.paused[:] }, Description{
		Help: "1 while the cache can't follow storage because of an object that can't be decoded or applied, otherwise 0. It then refuses watches, and reads that need newer versions go to storage.",
	}},
	{NameAsleep, Gauge, func(v view) any { return oneIf(v.series == nil) }, Description{
		Asleep: true,
		Help:   "1 while the cache sleeps, i.e. before its first use or after its idle timeout, otherwise 0.",
	}},
	{NameWokenUp, Counter, func(v view) any { return float64(v.wokenUp) }, Description{
		Asleep: true,
		Help:   "Times a request started or woke the cache. All its other counters then restart at 0.",
	}},
	{NameObjects, Gauge, func(v view) any { return v.objects[:] }, Description{
		Help: "Objects in the cache.",
	}},
	{NameIndexes, Gauge, func(v view) any { return v.indexes[:] }, Description{
		Help: "Indexes that the cache built because LISTs needed them.",
	}},
	{NameBytes, Gauge, func(v view) any { return v.bytes[:] }, Description{
		Help:   "Estimated memory of the cache in bytes, by part: objects, the window without them, kept serializations (encodings), trees of keys and indexes (indexes), and states that watches need for their initial events (snapshots). Measured once a second.",
		Labels: []Label{{"part", bytesParts[:]}},
	}},
	{NameWindowEvents, Gauge, func(v view) any { return v.windowEvents[:] }, Description{
		Help: "Events kept in the window of recent changes.",
	}},
	{NameWindowSeconds, Gauge, func(v view) any { return v.windowSeconds[:] }, Description{
		Help: "Span of the window of recent changes in seconds: since its last eviction, or since the last list of storage.",
	}},
	{NameWindowCut, Counter, func(v view) any { return v.windowCut[:] }, Description{
		Help: "Events evicted before the age of EventsHistoryWindow because the window reached WindowBytes.",
	}},
	{NameInitialSnapshots, Gauge, func(v view) any { return v.snapshots[:] }, Description{
		Help: "Different states kept for watches that are receiving initial events.",
	}},
	{NameResourceVersion, Gauge, func(v view) any { return exact(&v.resourceVersion) }, Description{
		Help: "Resource version that the cache has reached. Absent above 2^53, where it would be inexact, and before the first list.",
	}},
	{NameOldestResourceVersion, Gauge, func(v view) any { return exact(&v.oldestResourceVersion) }, Description{
		Help: "Lowest resource version from which a watch can resume. Absent above 2^53, where it would be inexact, and before the first list.",
	}},
	{NameStorageResourceVersion, Gauge, func(v view) any { return exact(&v.storageVersion) }, Description{
		Help: "Highest resource version reported by storage since the last list. Absent above 2^53, where it would be inexact, and before the first report.",
	}},
	{NameEvents, Counter, func(v view) any { return v.events[:] }, Description{
		Help:   "Events received from storage, by type.",
		Labels: []Label{{"type", eventTypes[:]}},
	}},
	{NameDispatchLag, Histogram, func(v view) any { return v.dispatchLag[:] }, Description{
		Help:    "Time from recording an event to dispatching it to all live watchers, in seconds.",
		Buckets: waitBuckets,
	}},
	{NameStageDuration, Histogram, func(v view) any { return v.stageDuration[:] }, Description{
		Help:    "Time of an event by stage, in seconds: feed (computing key and attributes, changing the state; measured for one event of 16), queue (until the dispatcher takes its batch; measured for the oldest event of a batch), dispatch (finding the watchers and sending; a batch divided by its events).",
		Labels:  []Label{{"stage", stages[:]}},
		Buckets: stageBuckets,
	}},
	{NameCandidates, Counter, func(v view) any { return v.candidates[:] }, Description{
		Help: "Watchers that the index returned for an event, before evaluating their selectors.",
	}},
	{NameMatches, Counter, func(v view) any { return v.matches[:] }, Description{
		Help: "Live watchers that an event matched.",
	}},
	{NameEvaluations, Counter, func(v view) any { return v.evaluations[:] }, Description{
		Help: "Queries evaluated for an event, one for all watchers with the same query.",
	}},
	{NameEvaluationsSaved, Counter, func(v view) any { return v.evaluationsSaved[:] }, Description{
		Help: "Evaluations saved because watchers have the same query, i.e. candidates minus evaluations.",
	}},
	{NameDelivered, Counter, func(v view) any { return v.delivered[:] }, Description{
		Help: "Events sent to watchers, counted for each watcher.",
	}},
	{NameInitial, Counter, func(v view) any { return v.initial[:] }, Description{
		Help: "Objects sent to watchers as their initial state.",
	}},
	{NameEncodings, Counter, func(v view) any { return v.encodings[:] }, Description{
		Help: "Serializations of objects for watch events.",
	}},
	{NameEncodingsShared, Counter, func(v view) any { return v.encodingsShared[:] }, Description{
		Help: "Serializations of objects in watch events reused from another watcher.",
	}},
	{NameWatchers, Gauge, func(v view) any { return v.watchers[:] }, Description{
		Help:   "Open watches by state: live ones receive each event as it is dispatched, parked ones were live and replay the window, starting ones have not been live yet. Set once a second.",
		Labels: []Label{{"state", watcherStates[:]}},
	}},
	{NameWatcherLagEvents, Gauge, func(v view) any { return v.lagEvents[:] }, Description{
		Help:   "Lag of a watcher behind the dispatcher in events: the largest (worst) and the median of all watchers. 0 for a live watcher. Set once a second.",
		Labels: []Label{{"watcher", watcherRanks[:]}},
	}},
	{NameWatcherLagSeconds, Gauge, func(v view) any { return v.lagSeconds[:] }, Description{
		Help:   "Age of the first unsent event of a watcher in seconds: the largest (worst) and the median of all watchers. 0 for a live watcher. Set once a second.",
		Labels: []Label{{"watcher", watcherRanks[:]}},
	}},
	{NameParked, Counter, func(v view) any { return v.parkings[:] }, Description{
		Help: "Live watchers parked because they did not keep up.",
	}},
	{NameResumed, Counter, func(v view) any { return v.resumptions[:] }, Description{
		Help: "Parked watchers that caught up and went live again.",
	}},
	{NameExpired, Counter, func(v view) any { return v.expired[:] }, Description{
		Help: "Parked watchers ended because their next event had been evicted from the window.",
	}},
	{NameBeyondWindow, Counter, func(v view) any { return v.beyondWindow[:] }, Description{
		Help: "Watches that resumed or continued from below the window, because none of their events had left it.",
	}},
	{NameEnded, Counter, func(v view) any { return v.ended[:] }, Description{
		Help:   "Watches that ended, by reason: stopped by the client, deadline reached, position expired, cache relisted, storage unable to deliver an event (failed), initial events not read in time (stalled), initial events that held too much memory (heavy), or cache shut down.",
		Labels: []Label{{"reason", endReasons[:]}},
	}},
	{NameReads, Counter, func(v view) any { return v.reads[:] }, Description{
		Help:   "GET and LIST requests by answer: from the latest state (latest), as fresh as storage (consistent), at an exact version (exact), by a continue token (continue), from storage (delegate), or refused (refuse).",
		Labels: []Label{{"verb", verbs[:]}, {"decision", decisions[:]}},
	}},
	{NameReadDuration, Histogram, func(v view) any { return v.readDuration[:] }, Description{
		Help:    "Time of GET and LIST requests in the cache, including waiting and storage's time, in seconds, by answer. Of the GETs at resourceVersion 0 that the cache answers, one of 64 is timed.",
		Labels:  []Label{{"verb", verbs[:]}, {"decision", decisions[:]}},
		Buckets: readBuckets,
	}},
	{NameReadWait, Histogram, func(v view) any { return v.readWait[:] }, Description{
		Help:    "Time that reads waited for the cache to be fresh enough, in seconds. Excludes reads that did not wait.",
		Buckets: waitBuckets,
	}},
	{NameFallbackReads, Counter, func(v view) any { return v.fallbackReads[:] }, Description{
		Help:   "Consistent GET and LIST requests that timed out waiting for a fresh cache, by answer: from storage (storage), or refused beyond MaxFallbackLists (refused). The cache never answers them with stale data.",
		Labels: []Label{{"answer", fallbackAnswers[:]}},
	}},
	{NameReadsByIndex, Counter, func(v view) any { return &v.byIndex }, Description{
		Help:   "LIST requests served from the cache, by the index they read: keys is a range of keys, other an adaptive index.",
		Labels: []Label{{Name: "index"}},
	}},
	{NameEvaluated, Counter, func(v view) any { return v.evaluated[:] }, Description{
		Help: "Objects that LIST requests evaluated, in the range of keys or of an index.",
	}},
	{NameListed, Counter, func(v view) any { return v.listed[:] }, Description{
		Help: "Objects that LIST requests returned from the cache.",
	}},
	{NameVersionRequests, Counter, func(v view) any { return v.versionRequests[:] }, Description{
		Help: "Requests for storage's current resource version, counted when sent.",
	}},
	{NameVersionDuration, Histogram, func(v view) any { return v.versionDuration[:] }, Description{
		Help:    "Duration of requests for storage's resource version in seconds, by result: ok, error, unanswered until its reads timed out, superseded by the answer to a later request, or abandoned because its reads were gone or an older request of theirs counts as unanswered.",
		Labels:  []Label{{"result", versionResults[:]}},
		Buckets: requestBuckets,
	}},
	{NameVersionRequestReads, Counter, func(v view) any { return v.versionRequestReads[:] }, Description{
		Help: "Consistent reads that waited for storage's resource version.",
	}},
	{NameStorageSilence, Gauge, func(v view) any { return v.silent() }, Description{
		Help: "Time since storage last sent anything (an event, a progress report, a list or an answer), in seconds. Computed at the scrape.",
	}},
	{NameRelists, Counter, func(v view) any { return v.relists[:] }, Description{
		Help:   "Full lists of storage by cause: start, a broken watch whose events are compacted (expired), too many versions behind (behind), a difference from storage (inconsistent), a change that can't be applied (change) or delivered (undeliverable), or a storage that went back (restored).",
		Labels: []Label{{"cause", relistCauses[:]}},
	}},
	{NameWatchesBroken, Counter, func(v view) any { return v.watchesBroken[:] }, Description{
		Help: "Storage watches that broke and were resumed.",
	}},
	{NameUndeliverable, Counter, func(v view) any { return v.undeliverable[:] }, Description{
		Help: "Times storage answered but could not deliver an event or an object. The log and the status say which.",
	}},
	{NameConsistencyChecks, Counter, func(v view) any { return v.consistency[:] }, Description{
		Help:   "Comparisons of the cache with storage at one resource version, by result: passed, failed, or error if there was no comparison.",
		Labels: []Label{{"result", checkResults[:]}},
	}},
	{NameShadowCompared, Counter, func(v view) any { return v.shadowCompared[:] }, Description{
		Help:   "Comparisons of this cache with the shipped cacher, which answers the requests, by kind: responses to get and list, and events of watch. Only with --watch-cache-shadow.",
		Labels: []Label{{"kind", shadowKinds[:]}},
	}},
	{NameShadowDiffered, Counter, func(v view) any { return v.shadowDiffered[:] }, Description{
		Help:   "Comparisons with the shipped cacher that found a difference, by kind. Clients got the shipped cacher's answer.",
		Labels: []Label{{"kind", shadowKinds[:]}},
	}},
	{NameShadowSkipped, Counter, func(v view) any { return v.shadowSkipped[:] }, Description{
		Help:   "Skipped comparisons with the shipped cacher, by reason: too many running (room), or a side could not answer at the other's version (excused).",
		Labels: []Label{{"reason", shadowSkips[:]}},
	}},
}
