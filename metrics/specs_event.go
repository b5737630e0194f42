// SPDX-License-Identifier: Apache-2.0

package metrics

// eventSpecs describe the way of events through a cache.
var eventSpecs = []spec{
	{
		Description: Description{
			Name: NameEvents, Kind: Counter,
			Help:    "Events that the cache received from its storage, by type.",
			Labels:  []Label{{"type", eventTypes}},
			Purpose: "Says how often the resource changes; BOOKMARK counts reports of progress.",
			Normal:  "As many as there are writes.",
			High:    "Look for the client that writes so often: most often a controller that updates a status in a loop.",
		},
		cells: func(s *series) []cell { return s.events[:] },
	},
	{
		Description: Description{
			Name: NameDispatchLag, Kind: Histogram,
			Help:    "Time from when the cache had recorded an event until the event was dispatched to all live watchers, in seconds.",
			Buckets: waitBuckets,
			Purpose: "Says how much later than the cache itself its watchers learn of a change.",
			Normal:  "Below 1 ms; up to DispatchBudget in a second in which watchers are slow.",
			High:    "The dispatcher is short of CPU, has very many watchers for each event, or waits for slow ones: look at watchcache_dispatch_matches_total and watchcache_watchers_parked_total; lower DispatchBudget.",
		},
		histograms: func(s *series) []lazyHistogram { return s.dispatchLag[:] },
	},
	{
		Description: Description{
			Name: NameStageDuration, Kind: Histogram,
			Help:    "Time of an event by stage, in seconds: feed (key, attributes and the state's change; one event of 16 is measured), queue (from then until the dispatcher takes the event's batch; the oldest event of a batch is measured), dispatch (finding the watchers and sending; a batch is measured, and the time divided by its events).",
			Labels:  []Label{{"stage", stages}},
			Buckets: stageBuckets,
			Purpose: "Says which part of the way of events takes the time.",
			Normal:  "feed: some 10 us. queue: below 1 ms. dispatch: 1 us and about 0.3 us for each watcher that gets the event.",
			High:    "feed: KeyFunc, GetAttrs or an IndexerFunc is slow. queue: the dispatcher is busy, so look at dispatch. dispatch: many watchers for each event, or slow ones.",
		},
		histograms: func(s *series) []lazyHistogram { return s.stageDuration[:] },
	},
	{
		Description: Description{
			Name: NameCandidates, Kind: Counter,
			Help:    "Watchers that the index named for an event, before their selectors were asked.",
			Purpose: "Together with watchcache_dispatch_matches_total says how well watchers are indexed.",
			Normal:  "Little more than the matches.",
			High:    "Many candidates for each match: watchers select by what no index serves, such as != or a field without an index. Name the label in LabelIndexes, or the field in Indexers.",
		},
		cells: func(s *series) []cell { return s.candidates[:] },
	},
	{
		Description: Description{
			Name: NameMatches, Kind: Counter,
			Help:    "Watchers that an event was for, live ones only.",
			Purpose: "Divided by the events, says how many watchers learn of a change.",
			Normal:  "Follows from what clients watch.",
			High:    "Many clients watch the whole resource: let them select what they need.",
		},
		cells: func(s *series) []cell { return s.matches[:] },
	},
	{
		Description: Description{
			Name: NameEvaluations, Kind: Counter,
			Help:    "Queries that were evaluated for an event: one for all watchers that have the same.",
			Purpose: "Says what it costs to find the watchers that an event is for.",
			Normal:  "As many as there are different queries among the candidates.",
			High:    "As watchcache_dispatch_candidates_total.",
		},
		cells: func(s *series) []cell { return s.evaluations[:] },
	},
	{
		Description: Description{
			Name: NameEvaluationsSaved, Kind: Counter,
			Help:    "Evaluations that were saved because watchers have the same query: the candidates without the evaluations.",
			Purpose: "Says what groups of watchers save.",
			Normal:  "Most of the candidates where many clients run the same program.",
			High:    "The higher the better.",
		},
		cells: func(s *series) []cell { return s.evaluationsSaved[:] },
	},
	{
		Description: Description{
			Name: NameDelivered, Kind: Counter,
			Help:    "Events handed to watchers, one for each watcher that got it.",
			Purpose: "Says how much the watches of the resource are told.",
			Normal:  "The matches, and what parked watchers are replayed.",
			High:    "As watchcache_dispatch_matches_total.",
		},
		cells: func(s *series) []cell { return s.delivered[:] },
	},
	{
		Description: Description{
			Name: NameInitial, Kind: Counter,
			Help:    "Objects sent to watchers as their initial state.",
			Purpose: "Says what new watches cost.",
			Normal:  "Rises while clients start.",
			High:    "Clients begin again and again: look at watchcache_watchers_ended_total for the reason.",
		},
		cells: func(s *series) []cell { return s.initial[:] },
	},
	{
		Description: Description{
			Name: NameEncodings, Kind: Counter,
			Help:    "Serializations of objects that were made for watch events.",
			Purpose: "Says how much CPU encoding takes.",
			Normal:  "One for each event and format that is watched in, and as many for initial events.",
			High:    "More than events times formats: EncodingBytes is too small, so that replayed events are encoded again.",
		},
		cells: func(s *series) []cell { return s.encodings[:] },
	},
	{
		Description: Description{
			Name: NameEncodingsShared, Kind: Counter,
			Help:    "Serializations of objects in watch events that were there already, made for another watcher.",
			Purpose: "Says what sharing serializations saves.",
			Normal:  "Nearly all where many watchers get the same events.",
			High:    "The higher the better.",
		},
		cells: func(s *series) []cell { return s.encodingsShared[:] },
	},
}
