// SPDX-License-Identifier: Apache-2.0

package metrics

// readSpecs describe GET and LIST requests.
var readSpecs = []spec{
	{Description: Description{
		Name: NameReads, Kind: Counter,
		Help:   "GET and LIST requests by the way they were answered: from the latest state, at an exact version, by a continue token, as fresh as storage, delegated to storage, or refused.",
		Labels: []Label{{"verb", verbs}, {"decision", decisions}},
		Normal: "Nearly none delegated or refused.",
		High:   "delegate: clients ask for versions that have left the window, or the cache is stale. refuse: the cache is not ready, or more stale reads came than MaxFallbackLists allows.",
	}, cells: func(s *series) []cell { return s.reads[:] }},
	{Description: Description{
		Name: NameReadDuration, Kind: Histogram,
		Help:    "Time that GET and LIST requests took in the cache, waiting and the storage's own time included, in seconds, by the way they were answered. Of the GETs at resourceVersion 0 that the cache answers, one of 64 is timed.",
		Labels:  []Label{{"verb", verbs}, {"decision", decisions}},
		Buckets: readBuckets,
		Purpose: "Encoding the answer and the network are not included. watchcache_reads_total counts all reads.",
		Normal:  "latest: microseconds for a GET, and some 10 ns for each object of a LIST. consistent: the time of a version request to the storage on top.",
		High:    "consistent: see watchcache_version_request_duration_seconds and watchcache_read_wait_seconds. latest: LISTs of many objects; see watchcache_list_evaluated_objects_total.",
	}, histograms: func(s *series) []lazyHistogram { return s.readDuration[:] }},
	{Description: Description{
		Name: NameReadWait, Kind: Histogram,
		Help:    "Time that reads waited for the cache to be fresh enough, in seconds. Reads that did not wait are not counted.",
		Buckets: waitBuckets,
		Normal:  "A few milliseconds.",
		High:    "The storage's watch lags behind, or the storage does not report its progress: check its load, and the WatchProgress option.",
	}, histograms: func(s *series) []lazyHistogram { return s.readWait[:] }},
	{Description: Description{
		Name: NameStaleReads, Kind: Counter,
		Help:   "Consistent GET and LIST requests for which the cache did not become fresh in time, by what became of them: passed on to storage, or refused because too many were.",
		Labels: []Label{{"answer", staleAnswers}},
		Normal: "0.",
		High:   "Look at watchcache_storage_silence_seconds and at the storage's own load. refused: clients get 429 and retry, beyond MaxFallbackLists.",
	}, cells: func(s *series) []cell { return s.staleReads[:] }},
	{Description: Description{
		Name: NameReadsByIndex, Kind: Counter,
		Help:   "LIST requests served from the cache, by the index that they read; keys: a range of keys; other: an adaptive one.",
		Labels: []Label{{Name: "index"}},
		Normal: "Selective requests use an index.",
		High:   "keys, with many objects evaluated for each one returned: selectors that pin no label or field.",
	}, named: func(s *series) *namedCounters { return &s.byIndex }},
	{Description: Description{
		Name: NameEvaluated, Kind: Counter,
		Help:    "Objects that LIST requests looked at, in the range of keys or of an index that was read.",
		Purpose: "With watchcache_list_returned_objects_total, how selective LISTs are served.",
		Normal:  "Little more than the returned ones.",
		High:    "Many times the returned ones: see watchcache_reads_by_index_total.",
	}, cells: func(s *series) []cell { return s.evaluated[:] }},
	{Description: Description{
		Name: NameListed, Kind: Counter,
		Help:   "Objects that LIST requests returned from the cache.",
		Normal: "Follows from what clients list.",
		High:   "Clients list everything again and again: they should watch, or use limits.",
	}, cells: func(s *series) []cell { return s.listed[:] }},
	{Description: Description{
		Name: NameVersionRequests, Kind: Counter,
		Help:   "Requests to the storage for its current resource version, counted when they are sent.",
		Normal: "At most one for each time that the storage needs to answer, however many reads there are.",
		High:   "The storage answers late, so that requests are sent again beside the slow ones.",
	}, cells: func(s *series) []cell { return s.versionRequests[:] }},
	{Description: Description{
		Name: NameVersionDuration, Kind: Histogram,
		Help:    "Time that requests for the storage's resource version were under way, in seconds, by result: ok, error, unanswered while reads waited for as long as they may, superseded by the answer to a later request, or abandoned: its reads were gone, or an older request of theirs counts as unanswered.",
		Labels:  []Label{{"result", versionResults}},
		Buckets: requestBuckets,
		Purpose: "How fast the storage answers, and when it did not.",
		Normal:  "ok, in a few milliseconds.",
		High:    "unanswered and error: the storage is away or cut off. superseded, often: one of its members is slow or paused. abandoned, without unanswered ones: clients give up soon.",
	}, histograms: func(s *series) []lazyHistogram { return s.versionDuration[:] }},
	{Description: Description{
		Name: NameVersionRequestReads, Kind: Counter,
		Help:    "Consistent reads that waited for the storage's resource version, alone or with others that shared the request.",
		Purpose: "Divided by watchcache_version_requests_total, how many reads share a request.",
		Normal:  "As the consistent reads.",
	}, cells: func(s *series) []cell { return s.versionRequestReads[:] }},
}
