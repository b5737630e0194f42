// SPDX-License-Identifier: Apache-2.0

package metrics

// readSpecs describe GET and LIST requests.
var readSpecs = []spec{
	{
		Description: Description{
			Name: NameReads, Kind: Counter,
			Help:    "GET and LIST requests by the way they were answered: from the latest state, at an exact version, by a continue token, as fresh as storage, delegated to storage, or refused.",
			Labels:  []Label{{"verb", verbs}, {"decision", decisions}},
			Purpose: "Says how much the cache takes off the storage.",
			Normal:  "Nearly none delegated or refused.",
			High:    "delegate: clients ask for versions that have left the window, or the cache is stale. refuse: the cache is not ready, or more stale reads came than StaleReads allows.",
		},
		cells: func(s *series) []cell { return s.reads[:] },
	},
	{
		Description: Description{
			Name: NameReadDuration, Kind: Histogram,
			Help:    "Time that GET and LIST requests took in the cache, waiting and the storage's own time included, in seconds, by the way they were answered. Of the GETs at resourceVersion 0 that the cache answers, one of 64 is timed.",
			Labels:  []Label{{"verb", verbs}, {"decision", decisions}},
			Buckets: readBuckets,
			Purpose: "Says where reads are slow; watchcache_reads_total says how many there are. Encoding the answer and the network are not included.",
			Normal:  "latest: microseconds for a GET, and some 10 ns for each object of a LIST. consistent: the time of a version request to the storage on top.",
			High:    "consistent: see watchcache_version_request_duration_seconds and watchcache_read_wait_seconds. latest: LISTs of many objects; see watchcache_list_evaluated_objects_total.",
		},
		histograms: func(s *series) []lazyHistogram { return s.readDuration[:] },
	},
	{
		Description: Description{
			Name: NameReadWait, Kind: Histogram,
			Help:    "Time that reads waited for the cache to be fresh enough, in seconds. Reads that did not wait are not counted.",
			Buckets: waitBuckets,
			Purpose: "Says what consistent reads wait for the storage's watch.",
			Normal:  "A few milliseconds.",
			High:    "The storage's watch lags behind, or the storage does not report its progress: check its load, and the WatchProgress option.",
		},
		histograms: func(s *series) []lazyHistogram { return s.readWait[:] },
	},
	{
		Description: Description{
			Name: NameStaleReads, Kind: Counter,
			Help:    "Consistent GET and LIST requests for which the cache did not become fresh in time, by what became of them: passed on to storage, or refused because too many were.",
			Labels:  []Label{{"answer", staleAnswers}},
			Purpose: "Shows that the cache lags behind its storage.",
			Normal:  "0.",
			High:    "Look at watchcache_storage_silence_seconds and at the storage's own load. refused: clients are told to retry, so that not all of them fall upon the storage; StaleReads bounds how many may.",
		},
		cells: func(s *series) []cell { return s.staleReads[:] },
	},
	{
		Description: Description{
			Name: NameReadsByIndex, Kind: Counter,
			Help:    "LIST requests served from the cache, by the index that they read; keys: a range of keys.",
			Labels:  []Label{{Name: "index"}},
			Purpose: "Says which indexes are used.",
			Normal:  "Selective requests use an index.",
			High:    "keys, with many objects evaluated for each one returned: an index is missing; see LabelIndexes and Indexers.",
		},
		named: func(s *series) *namedCounters { return &s.byIndex },
	},
	{
		Description: Description{
			Name: NameEvaluated, Kind: Counter,
			Help:    "Objects that LIST requests looked at, in the range of keys or of an index that was read.",
			Purpose: "Together with watchcache_list_returned_objects_total says how selective LISTs are served.",
			Normal:  "Little more than what was returned.",
			High:    "Many times what was returned: requests select by what no index serves; see LabelIndexes and Indexers.",
		},
		cells: func(s *series) []cell { return s.evaluated[:] },
	},
	{
		Description: Description{
			Name: NameListed, Kind: Counter,
			Help:    "Objects that LIST requests returned from the cache.",
			Purpose: "Says how much LISTs read.",
			Normal:  "Follows from what clients list.",
			High:    "Clients list everything again and again: they should watch, or use limits.",
		},
		cells: func(s *series) []cell { return s.listed[:] },
	},
	{
		Description: Description{
			Name: NameVersionRequests, Kind: Counter,
			Help:    "Requests to the storage for its current resource version, counted when they are sent.",
			Purpose: "Says what consistent reads cost the storage.",
			Normal:  "At most one for each time that the storage needs to answer, however many reads there are.",
			High:    "The storage answers late, so that requests are sent again beside the slow ones.",
		},
		cells: func(s *series) []cell { return s.versionRequests[:] },
	},
	{
		Description: Description{
			Name: NameVersionDuration, Kind: Histogram,
			Help:    "Time that requests for the storage's resource version were under way, in seconds, by result: ok, error, unanswered while reads waited for as long as they may, superseded by the answer to a later request, or abandoned: its reads were gone, or an older request of theirs counts as unanswered.",
			Labels:  []Label{{"result", versionResults}},
			Buckets: requestBuckets,
			Purpose: "Says how fast the storage answers, and leaves a trace of the times when it did not.",
			Normal:  "ok, in a few milliseconds.",
			High:    "unanswered and error: the storage is away or cut off. superseded, often: one of its members is slow or paused. abandoned, without unanswered ones: clients give up soon.",
		},
		histograms: func(s *series) []lazyHistogram { return s.versionDuration[:] },
	},
	{
		Description: Description{
			Name: NameVersionRequestReads, Kind: Counter,
			Help:    "Consistent reads that waited for the storage's resource version, alone or with others that shared the request.",
			Purpose: "Divided by watchcache_version_requests_total, says how many reads share a request.",
			Normal:  "As the consistent reads.",
			High:    "Nothing is to be done: the more reads share a request, the better.",
		},
		cells: func(s *series) []cell { return s.versionRequestReads[:] },
	},
}
