// SPDX-License-Identifier: Apache-2.0

package metrics

// storageSpecs describe the storage, and what the cache does to agree with it.
var storageSpecs = []spec{
	{
		Description: Description{
			Name: NameStorageSilence, Kind: Gauge,
			Help:    "Time since the storage was last heard of, by an event, a report of progress, a list or an answer, in seconds. Computed when the metrics are read.",
			Purpose: "Shows that the storage is away, before reads find out.",
			Normal:  "Below 65 s: the cache asks for the storage's version every minute, if nothing else happens.",
			High:    "Above 75 s: check that the storage runs and can be reached. Reads without a resourceVersion fail meanwhile, others are served.",
		},
		computed: func(s *series) (float64, bool) {
			silence := s.silence.Load()
			if silence == nil {
				return 0, false
			}
			return (*silence)().Seconds(), true
		},
	},
	{
		Description: Description{
			Name: NameRelists, Kind: Counter,
			Help:    "Full lists by which the cache resynchronised with its storage, by cause: start, events after a broken watch no longer there (expired), too many versions behind (behind), the cache differs from the storage (inconsistent), a change that can't be applied (change) or delivered (undeliverable), or a storage that went back (restored).",
			Labels:  []Label{{"cause", relistCauses}},
			Purpose: "Counts the most expensive thing that a cache does; all its watchers begin again.",
			Normal:  "1 with the cause start.",
			High:    "expired, behind: the storage was away for longer than it keeps its history. inconsistent, restored: the storage was restored from a backup, or lost an event; see the log. change, undeliverable: see watchcache_paused.",
		},
		cells: func(s *series) []cell { return s.relists[:] },
	},
	{
		Description: Description{
			Name: NameWatchesBroken, Kind: Counter,
			Help:    "Watches on the storage that broke and were resumed.",
			Purpose: "Shows an unreliable connection to the storage.",
			Normal:  "A few when a member of the storage restarts.",
			High:    "Check the storage's members and the network between.",
		},
		cells: func(s *series) []cell { return s.watchesBroken[:] },
	},
	{
		Description: Description{
			Name: NameUndeliverable, Kind: Counter,
			Help:    "Times the storage answered but had an event or an object that it could not deliver. The log and the status say which.",
			Purpose: "Counts attempts while one object keeps the resource from being watched or listed.",
			Normal:  "0.",
			High:    "As watchcache_paused.",
		},
		cells: func(s *series) []cell { return s.undeliverable[:] },
	},
	{
		Description: Description{
			Name: NameConsistencyChecks, Kind: Counter,
			Help:    "Comparisons of the cache with its storage at one resource version, by result: passed, failed, or error where none could be made.",
			Labels:  []Label{{"result", checkResults}},
			Purpose: "Proves that the cache has what the storage has.",
			Normal:  "passed, each ConsistencyCheckInterval.",
			High:    "failed: the cache differed and was listed again; report it with the log. error: the storage can't be listed.",
		},
		cells: func(s *series) []cell { return s.consistency[:] },
	},
}
