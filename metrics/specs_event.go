// SPDX-License-Identifier: Apache-2.0

package metrics

// eventSpecs describe the way of events through a cache.
var eventSpecs = []spec{
	{Description: Description{
		Name: NameEvents, Kind: Counter,
		Help:    "Events that the cache received from its storage, by type.",
		Labels:  []Label{{"type", eventTypes}},
		Purpose: "The rate of changes; BOOKMARK counts reports of progress.",
		Normal:  "As many as there are writes.",
		High:    "Look for the client that writes so often: most often a controller that updates a status in a loop.",
	}, cells: func(s *series) []cell { return s.events[:] }},
	{Description: Description{
		Name: NameDispatchLag, Kind: Histogram,
		Help:    "Time from when the cache had recorded an event until the event was dispatched to all live watchers, in seconds.",
		Buckets: waitBuckets,
		Purpose: "How much later than the cache its watchers receive a change.",
		Normal:  "Below 1 ms; up to DispatchBudget in a second in which watchers are slow.",
		High:    "The dispatcher is short of CPU, has very many watchers for each event, or waits for slow ones: look at watchcache_dispatch_matches_total and watchcache_watchers_parked_total; lower DispatchBudget.",
	}, histograms: func(s *series) []lazyHistogram { return s.dispatchLag[:] }},
	{Description: Description{
		Name: NameStageDuration, Kind: Histogram,
		Help:    "Time of an event by stage, in seconds: feed (key, attributes and the state's change; one event of 16 is measured), queue (from then until the dispatcher takes the event's batch; the oldest event of a batch is measured), dispatch (finding the watchers and sending; a batch is measured, and the time divided by its events).",
		Labels:  []Label{{"stage", stages}},
		Buckets: stageBuckets,
		Normal:  "feed: some 10 us. queue: below 1 ms. dispatch: 1 us and about 0.3 us for each watcher that gets the event.",
		High:    "feed: KeyFunc, GetAttrs or an IndexerFunc is slow. queue: the dispatcher is busy, so look at dispatch. dispatch: many watchers for each event, or slow ones.",
	}, histograms: func(s *series) []lazyHistogram { return s.stageDuration[:] }},
	{Description: Description{
		Name: NameCandidates, Kind: Counter,
		Help:    "Watchers that the index named for an event, before their selectors were asked.",
		Purpose: "With watchcache_dispatch_matches_total, how well watchers are indexed.",
		Normal:  "Little more than the matches.",
		High:    "Many candidates for each match: watchers select with !=, or by a label or field without an index. Name the label in LabelIndexes, or the field in Indexers.",
	}, cells: func(s *series) []cell { return s.candidates[:] }},
	{Description: Description{
		Name: NameMatches, Kind: Counter,
		Help:    "Watchers that an event was for, live ones only.",
		Purpose: "Divided by the events, how many watchers a change affects.",
		Normal:  "Follows from what clients watch.",
		High:    "Many clients watch the whole resource: let them select what they need.",
	}, cells: func(s *series) []cell { return s.matches[:] }},
	{Description: Description{
		Name: NameEvaluations, Kind: Counter,
		Help:   "Queries that were evaluated for an event: one for all watchers that have the same.",
		Normal: "As many as there are different queries among the candidates.",
		High:   "As watchcache_dispatch_candidates_total.",
	}, cells: func(s *series) []cell { return s.evaluations[:] }},
	{Description: Description{
		Name: NameEvaluationsSaved, Kind: Counter,
		Help:   "Evaluations that were saved because watchers have the same query: the candidates without the evaluations.",
		Normal: "Most of the candidates where many clients run the same program.",
	}, cells: func(s *series) []cell { return s.evaluationsSaved[:] }},
	{Description: Description{
		Name: NameDelivered, Kind: Counter,
		Help:   "Events handed to watchers, one for each watcher that got it.",
		Normal: "The matches, and replayed events of parked watchers.",
		High:   "As watchcache_dispatch_matches_total.",
	}, cells: func(s *series) []cell { return s.delivered[:] }},
	{Description: Description{
		Name: NameInitial, Kind: Counter,
		Help:   "Objects sent to watchers as their initial state.",
		Normal: "Rises while clients start.",
		High:   "Clients begin again and again: look at watchcache_watchers_ended_total for the reason.",
	}, cells: func(s *series) []cell { return s.initial[:] }},
	{Description: Description{
		Name: NameEncodings, Kind: Counter,
		Help:   "Serializations of objects that were made for watch events.",
		Normal: "One for each event and format that is watched in, and as many for initial events.",
		High:   "More than events times formats: EncodingBytes is too small, so that replayed events are encoded again.",
	}, cells: func(s *series) []cell { return s.encodings[:] }},
	{Description: Description{
		Name: NameEncodingsShared, Kind: Counter,
		Help:   "Serializations of objects in watch events that were there already, made for another watcher.",
		Normal: "Nearly all where many watchers get the same events.",
	}, cells: func(s *series) []cell { return s.encodingsShared[:] }},
}

// watcherSpecs describe the watchers of a cache.
var watcherSpecs = []spec{
	{Description: Description{
		Name: NameWatchers, Kind: Gauge,
		Help:   "Open watches by state: live ones are sent each event as it is dispatched, parked ones were live and replay from their position in the window, starting ones have not been live yet. Set once a second.",
		Labels: []Label{{"state", watcherStates}},
		Normal: "Nearly all live.",
		High:   "parked: slow clients; the debug page names them. starting, for more than seconds: clients that do not read their initial events.",
	}, cells: func(s *series) []cell { return s.watchers[:] }},
	{Description: Description{
		Name: NameWatcherLagEvents, Kind: Gauge,
		Help:    "How many events a watcher is behind the dispatcher: the one that is furthest behind (worst), and the median of all watchers. A live watcher is not behind. Set once a second.",
		Labels:  []Label{{"watcher", watcherRanks}},
		Purpose: "Compare it with watchcache_window_events.",
		Normal:  "0.",
		High:    "worst: one client is slow, and expires when its lag exceeds the window. median: most are: the server is short of CPU or network.",
	}, cells: func(s *series) []cell { return s.lagEvents[:] }},
	{Description: Description{
		Name: NameWatcherLagSeconds, Kind: Gauge,
		Help:    "Age of the first event that a watcher has not been sent, in seconds: for the watcher that is furthest behind (worst), and the median of all watchers. 0 for a live watcher. Set once a second.",
		Labels:  []Label{{"watcher", watcherRanks}},
		Purpose: "Compare it with watchcache_window_seconds.",
		Normal:  "0.",
		High:    "As watchcache_watcher_lag_events.",
	}, cells: func(s *series) []cell { return s.lagSeconds[:] }},
	{Description: Description{
		Name: NameParked, Kind: Counter,
		Help:   "Times a live watcher did not keep up and was parked.",
		Normal: "A few in a burst of changes, each followed by a resumption.",
		High:   "Clients are too slow for the rate of changes: the debug page names them; a larger WatchBuffer helps with short bursts.",
	}, cells: func(s *series) []cell { return s.parkings[:] }},
	{Description: Description{
		Name: NameResumed, Kind: Counter,
		Help:   "Times a parked watcher caught up and went live again.",
		Normal: "As watchcache_watchers_parked_total.",
		High:   "Less than the parked ones over minutes: watchers stay behind and will expire.",
	}, cells: func(s *series) []cell { return s.resumptions[:] }},
	{Description: Description{
		Name: NameExpired, Kind: Counter,
		Help:    "Times the window no longer had the events that a parked watcher was to be sent.",
		Purpose: "Counts clients that get 410 and must list.",
		Normal:  "0.",
		High:    "The window is too short for these clients: raise WindowBytes or EventsHistoryWindow, or make the clients faster.",
	}, cells: func(s *series) []cell { return s.expired[:] }},
	{Description: Description{
		Name: NameBeyondWindow, Kind: Counter,
		Help:    "Times a watch resumed, or a parked watcher went on, although events after its position had left the window: none of them was for the watch.",
		Purpose: "Counts quiet clients that need not list although others have filled the window.",
		Normal:  "0, or a few where some namespaces or index values change much more often than others.",
		High:    "The window is short for the rate of changes: watches of everything that resume as far back get 410.",
	}, cells: func(s *series) []cell { return s.beyondWindow[:] }},
	{Description: Description{
		Name: NameEnded, Kind: Counter,
		Help:   "Watches that ended, by reason: stopped by the client, deadline reached, position expired, cache relisted, storage unable to deliver an event (failed), parked for too long, initial events not taken for too long (stalled), initial events that kept too much memory (heavy), or cache shut down.",
		Labels: []Label{{"reason", endReasons}},
		Normal: "stopped and deadline.",
		High:   "expired, parked, stalled, heavy: slow clients. relist: see watchcache_relists_total. failed: see watchcache_paused.",
	}, cells: func(s *series) []cell { return s.ended[:] }},
}
