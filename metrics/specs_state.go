// SPDX-License-Identifier: Apache-2.0

package metrics

// stateSpecs describe the state of a cache.
var stateSpecs = []spec{
	{
		Description: Description{
			Name: NameReady, Kind: Gauge,
			Help:    "1 while the cache has its state and serves. Else 0.",
			Purpose: "Shows whether requests of the resource are answered from the cache.",
			Normal:  "1, but for the first seconds after a start. A cache that sleeps does not export it.",
			High:    "At 0 for longer than a list of the resource takes: read the log and the status, and check that the storage answers. Clients get 429 with a Retry-After meanwhile.",
		},
		cells: func(s *series) []cell { return s.ready[:] },
	},
	{
		Description: Description{
			Name: NamePaused, Kind: Gauge,
			Help:    "1 while the cache can't follow its storage, because of an object that can't be decoded or applied: it refuses watches, and reads that need more than it has go to the storage. Else 0.",
			Purpose: "Shows that one object keeps the whole resource from being watched.",
			Normal:  "0.",
			High:    "At 1: the log and the status say which object, or at which resourceVersion. Repair or delete the object; the cache then recovers by itself.",
		},
		cells: func(s *series) []cell { return s.paused[:] },
	},
	{
		Description: Description{
			Name: NameAsleep, Kind: Gauge, Asleep: true,
			Help:    "1 while the cache sleeps: it was not used yet, or not for its idle timeout. Else 0.",
			Purpose: "Tells a cache that sleeps from one that is missing.",
			Normal:  "0, or 1 for a resource that nobody uses, where LazyStart or IdleTimeout are configured.",
			High:    "Nothing is to be done: the first request wakes the cache up.",
		},
		presence: func(p *presence) float64 { return 1 - oneIf(p.awake.Load()) },
	},
	{
		Description: Description{
			Name: NameWokenUp, Kind: Counter, Asleep: true,
			Help:    "Times a request started the cache, or woke it up. All its other counters begin at 0 again then.",
			Purpose: "Shows what an idle timeout costs: each time, the storage is listed.",
			Normal:  "A few times a day.",
			High:    "Several times an hour: use a longer IdleTimeout for this resource.",
		},
		presence: func(p *presence) float64 { return float64(p.wokenUp.Load()) },
	},
	{
		Description: Description{
			Name: NameObjects, Kind: Gauge,
			Help:    "Objects that the cache holds.",
			Purpose: "Says how large the resource is.",
			Normal:  "The number of objects in the storage.",
			High:    "When the number grows without bound, look for what creates the objects.",
		},
		cells: func(s *series) []cell { return s.objects[:] },
	},
	{
		Description: Description{
			Name: NameBytes, Kind: Gauge,
			Help:    "Estimated memory of the cache in bytes, by part: the objects, the window of recent changes beyond them, the serializations that are kept, the trees of keys and indexes, and the states that are kept for watches which are being sent their initial events. Measured once a second.",
			Labels:  []Label{{"part", bytesParts}},
			Purpose: "Says what the cache costs, and which part does.",
			Normal:  "The window is at most WindowBytes, encodings at most EncodingBytes, snapshots at most InitialEventsBytes.",
			High:    "Objects: the resource is large. Window: many or large changes; lower WindowBytes or EventsHistoryWindow. Snapshots: clients are slow to read initial events; find them on the debug page.",
		},
		cells: func(s *series) []cell { return s.bytes[:] },
	},
	{
		Description: Description{
			Name: NameWindowEvents, Kind: Gauge,
			Help:    "Events kept in the window of recent changes.",
			Purpose: "Says how many changes a slow watcher may be behind.",
			Normal:  "The rate of changes times EventsHistoryWindow, and at least 128 once there were that many.",
			High:    "Nothing is to be done: the window shrinks after a burst.",
		},
		cells: func(s *series) []cell { return s.windowEvents[:] },
	},
	{
		Description: Description{
			Name: NameWindowSeconds, Kind: Gauge,
			Help:    "How far back the window of recent changes has every event, in seconds: to the last event that has left it, or to the last list of the storage.",
			Purpose: "Says how long a watcher may be away and still resume.",
			Normal:  "EventsHistoryWindow, or more for a resource that changes rarely; growing from 0 after a start or a relist.",
			High:    "Lower than EventsHistoryWindow for longer than that after a start means that WindowBytes is too small for the rate of changes: raise it, or watchers expire.",
		},
		cells: func(s *series) []cell { return s.windowSeconds[:] },
	},
	{
		Description: Description{
			Name: NameWindowCut, Kind: Counter,
			Help:    "Events that left the window of recent changes because it had reached WindowBytes, before they were as old as EventsHistoryWindow.",
			Purpose: "Shows that the window is shorter than promised.",
			Normal:  "0, and a few thousand in a burst.",
			High:    "Growing for minutes: raise WindowBytes, or find out who writes so much. Clients that resume from further back list again.",
		},
		cells: func(s *series) []cell { return s.windowCut[:] },
	},
	{
		Description: Description{
			Name: NameInitialSnapshots, Kind: Gauge,
			Help:    "Different states that are kept for watches which are being sent their initial events.",
			Purpose: "Shows how many clients list through watches at a time, and how far apart.",
			Normal:  "0, and a few while clients start.",
			High:    "Many for minutes: clients do not read their initial events. InitialEventsTimeout ends their watches.",
		},
		cells: func(s *series) []cell { return s.snapshots[:] },
	},
	{
		Description: Description{
			Name: NameResourceVersion, Kind: Gauge,
			Help:    "Resource version that the cache has reached. Left out above 2^53, where it would not be exact, and before the first list.",
			Purpose: "Shows that the cache goes on; compare it with watchcache_storage_resource_version.",
			Normal:  "Grows with each change of the resource.",
			High:    "When it stands still while the storage's goes on, the cache is stale: look at watchcache_storage_silence_seconds and watchcache_paused.",
		},
		exact: func(s *series) *cell { return &s.resourceVersion },
	},
	{
		Description: Description{
			Name: NameOldestResourceVersion, Kind: Gauge,
			Help:    "Lowest resource version from which a watch can resume. Left out above 2^53, where it would not be exact, and before the first list.",
			Purpose: "Says which clients must list again: those that were last told a lower version.",
			Normal:  "Follows watchcache_resource_version at the distance of the window.",
			High:    "When it jumps to the present, the cache has listed its storage again; see watchcache_relists_total.",
		},
		exact: func(s *series) *cell { return &s.oldestResourceVersion },
	},
	{
		Description: Description{
			Name: NameStorageResourceVersion, Kind: Gauge,
			Help:    "Highest resource version that the storage has told since the cache was last listed. Left out above 2^53, where it would not be exact, and before the storage has told one.",
			Purpose: "Shows how far the storage is ahead of the cache.",
			Normal:  "At or somewhat above watchcache_resource_version: the versions of etcd count the changes of all resources, and a cache learns of them only when it asks.",
			High:    "Ahead of watchcache_resource_version for more than a few seconds while consistent reads wait: the storage's watch lags behind or hangs.",
		},
		exact: func(s *series) *cell { return &s.storageResourceVersion },
	},
}
