// SPDX-License-Identifier: Apache-2.0

package metrics

// stateSpecs describe the state of a cache.
var stateSpecs = []spec{
	{Description: Description{
		Name: NameReady, Kind: Gauge,
		Help:   "1 while the cache has its state and serves. Else 0.",
		Normal: "1, but for the first seconds after a start. A cache that sleeps does not export it.",
		High:   "At 0 for longer than a list of the resource takes: read the log and the status, and check that the storage answers.",
	}, cells: func(s *series) []cell { return s.ready[:] }},
	{Description: Description{
		Name: NamePaused, Kind: Gauge,
		Help:   "1 while the cache can't follow its storage, because of an object that can't be decoded or applied: it refuses watches, and reads that need more than it has go to the storage. Else 0.",
		Normal: "0.",
		High:   "At 1: the log and the status say which object, or at which resourceVersion. Repair or delete the object; the cache then recovers by itself.",
	}, cells: func(s *series) []cell { return s.paused[:] }},
	{Description: Description{
		Name: NameAsleep, Kind: Gauge, Asleep: true,
		Help:    "1 while the cache sleeps: it was not used yet, or not for its idle timeout. Else 0.",
		Purpose: "Tells a sleeping cache from a missing one.",
		Normal:  "0, or 1 for a resource that nobody uses, where LazyStart or IdleTimeout are configured.",
	}, presence: func(p *presence) float64 { return 1 - oneIf(p.awake.Load()) }},
	{Description: Description{
		Name: NameWokenUp, Kind: Counter, Asleep: true,
		Help:    "Times a request started the cache, or woke it up. All its other counters begin at 0 again then.",
		Purpose: "The cost of an idle timeout: each time, the storage is listed.",
		Normal:  "A few times a day.",
		High:    "Several times an hour: use a longer IdleTimeout for this resource.",
	}, presence: func(p *presence) float64 { return float64(p.wokenUp.Load()) }},
	{Description: Description{
		Name: NameObjects, Kind: Gauge,
		Help:   "Objects that the cache holds.",
		Normal: "The number of objects in the storage.",
		High:   "Look for the client that creates the objects.",
	}, cells: func(s *series) []cell { return s.objects[:] }},
	{Description: Description{
		Name: NameIndexes, Kind: Gauge,
		Help:   "Indexes that the cache has built because LISTs needed them.",
		Normal: "A few.",
		High:   "At AdaptiveIndexes: declare some.",
	}, cells: func(s *series) []cell { return s.indexes[:] }},
	{Description: Description{
		Name: NameBytes, Kind: Gauge,
		Help:   "Estimated memory of the cache in bytes, by part: the objects, the window of recent changes beyond them, the serializations that are kept, the trees of keys and indexes, and the states that are kept for watches which are being sent their initial events. Measured once a second.",
		Labels: []Label{{"part", bytesParts}},
		Normal: "The window is at most WindowBytes, encodings at most EncodingBytes, snapshots at most WindowBytes.",
		High:   "Objects: the resource is large. Window: many or large changes; lower WindowBytes or EventsHistoryWindow. Snapshots: clients are slow to read initial events; find them on the debug page.",
	}, cells: func(s *series) []cell { return s.bytes[:] }},
	{Description: Description{
		Name: NameWindowEvents, Kind: Gauge,
		Help:   "Events kept in the window of recent changes.",
		Normal: "The rate of changes times EventsHistoryWindow, and at least 128 once there were that many.",
	}, cells: func(s *series) []cell { return s.windowEvents[:] }},
	{Description: Description{
		Name: NameWindowSeconds, Kind: Gauge,
		Help:    "How far back the window of recent changes has every event, in seconds: to the last event that has left it, or to the last list of the storage.",
		Purpose: "How long a watcher may be away and still resume.",
		Normal:  "EventsHistoryWindow, or more for a resource that changes rarely; growing from 0 after a start or a relist.",
		High:    "Lower than EventsHistoryWindow for longer than that after a start means that WindowBytes is too small for the rate of changes: raise it, or watchers expire.",
	}, cells: func(s *series) []cell { return s.windowSeconds[:] }},
	{Description: Description{
		Name: NameWindowCut, Kind: Counter,
		Help:   "Events that left the window of recent changes because it had reached WindowBytes, before they were as old as EventsHistoryWindow.",
		Normal: "0, and a few thousand in a burst.",
		High:   "Growing for minutes: raise WindowBytes, or find out who writes so much. Clients that resume from further back list again.",
	}, cells: func(s *series) []cell { return s.windowCut[:] }},
	{Description: Description{
		Name: NameInitialSnapshots, Kind: Gauge,
		Help:    "Different states that are kept for watches which are being sent their initial events.",
		Purpose: "How many clients list through watches at a time.",
		Normal:  "0, and a few while clients start.",
		High:    "Many for minutes: clients do not read their initial events. Their watches end after a minute.",
	}, cells: func(s *series) []cell { return s.snapshots[:] }},
	{Description: Description{
		Name: NameResourceVersion, Kind: Gauge,
		Help:    "Resource version that the cache has reached. Left out above 2^53, where it would not be exact, and before the first list.",
		Purpose: "Compare it with watchcache_storage_resource_version.",
		Normal:  "Grows with each change of the resource.",
		High:    "When it stands still while the storage's goes on, the cache is stale: look at watchcache_storage_silence_seconds and watchcache_paused.",
	}, exact: func(s *series) *cell { return &s.resourceVersion }},
	{Description: Description{
		Name: NameOldestResourceVersion, Kind: Gauge,
		Help:   "Lowest resource version from which a watch can resume. Left out above 2^53, where it would not be exact, and before the first list.",
		Normal: "Follows watchcache_resource_version at the distance of the window.",
		High:   "When it jumps to the present, the cache has listed its storage again; see watchcache_relists_total.",
	}, exact: func(s *series) *cell { return &s.oldestResourceVersion }},
	{Description: Description{
		Name: NameStorageResourceVersion, Kind: Gauge,
		Help:   "Highest resource version that the storage has told since the cache was last listed. Left out above 2^53, where it would not be exact, and before the storage has told one.",
		Normal: "At or somewhat above watchcache_resource_version: the versions of etcd count the changes of all resources, and a cache learns of them only when it asks.",
		High:   "Ahead of watchcache_resource_version for more than a few seconds while consistent reads wait: the storage's watch lags behind or hangs.",
	}, exact: func(s *series) *cell { return &s.storageResourceVersion }},
}

// storageSpecs describe the storage and how the cache stays equal to it.
var storageSpecs = []spec{
	{Description: Description{
		Name: NameStorageSilence, Kind: Gauge,
		Help:   "Time since the storage was last heard of, by an event, a report of progress, a list or an answer, in seconds. Computed when the metrics are read.",
		Normal: "Below 65 s: the cache asks for the storage's version every minute, if nothing else happens.",
		High:   "Above 75 s: check that the storage runs and can be reached. Reads without a resourceVersion fail meanwhile, others are served.",
	}, computed: func(s *series) (float64, bool) {
		silence := s.silence.Load()
		if silence == nil {
			return 0, false
		}
		return (*silence)().Seconds(), true
	}},
	{Description: Description{
		Name: NameRelists, Kind: Counter,
		Help:    "Full lists by which the cache resynchronised with its storage, by cause: start, events after a broken watch no longer there (expired), too many versions behind (behind), the cache differs from the storage (inconsistent), a change that can't be applied (change) or delivered (undeliverable), or a storage that went back (restored).",
		Labels:  []Label{{"cause", relistCauses}},
		Purpose: "Counts the most expensive thing that a cache does; all its watchers begin again.",
		Normal:  "1 with the cause start.",
		High:    "expired, behind: the storage was away for longer than it keeps its history. inconsistent, restored: the storage was restored from a backup, or lost an event; see the log. change, undeliverable: see watchcache_paused.",
	}, cells: func(s *series) []cell { return s.relists[:] }},
	{Description: Description{
		Name: NameWatchesBroken, Kind: Counter,
		Help:   "Watches on the storage that broke and were resumed.",
		Normal: "A few when a member of the storage restarts.",
		High:   "Check the storage's members and the network between.",
	}, cells: func(s *series) []cell { return s.watchesBroken[:] }},
	{Description: Description{
		Name: NameUndeliverable, Kind: Counter,
		Help:   "Times the storage answered but had an event or an object that it could not deliver. The log and the status say which.",
		Normal: "0.",
		High:   "As watchcache_paused.",
	}, cells: func(s *series) []cell { return s.undeliverable[:] }},
	{Description: Description{
		Name: NameConsistencyChecks, Kind: Counter,
		Help:   "Comparisons of the cache with its storage at one resource version, by result: passed, failed, or error where none could be made.",
		Labels: []Label{{"result", checkResults}},
		Normal: "passed, each ConsistencyCheckInterval.",
		High:   "failed: the cache differed and was listed again; report it with the log. error: the storage can't be listed.",
	}, cells: func(s *series) []cell { return s.consistency[:] }},
	{Description: Description{
		Name: NameShadowCompared, Kind: Counter,
		Help:    "Comparisons of this cache with the shipped cacher, which answers the requests, by kind: responses to get and list, and events of watch. Only with --watch-cache-shadow.",
		Labels:  []Label{{"kind", shadowKinds}},
		Purpose: "How much the absence of differences says.",
		Normal:  "The share of requests that the flag names. None without the flag.",
	}, cells: func(s *series) []cell { return s.shadowCompared[:] }},
	{Description: Description{
		Name: NameShadowDiffered, Kind: Counter,
		Help:   "Comparisons with the shipped cacher that have found a difference, by kind. Clients got the shipped cacher's answer.",
		Labels: []Label{{"kind", shadowKinds}},
		Normal: "None.",
		High:   "Do not switch over. The log has the versions; report it, please.",
	}, cells: func(s *series) []cell { return s.shadowDiffered[:] }},
	{Description: Description{
		Name: NameShadowSkipped, Kind: Counter,
		Help:   "Comparisons with the shipped cacher that were not made, by reason: too many under way (room), or a side could not answer at the version of the other one (excused).",
		Labels: []Label{{"reason", shadowSkips}},
		Normal: "Few beside watchcache_shadow_compared_total.",
		High:   "room: lower --watch-cache-shadow. excused: this cache was not ready, or fell behind.",
	}, cells: func(s *series) []cell { return s.shadowSkipped[:] }},
}
