// SPDX-License-Identifier: Apache-2.0

package metrics

// watcherSpecs describe the watchers of a cache.
var watcherSpecs = []spec{
	{
		Description: Description{
			Name: NameWatchers, Kind: Gauge,
			Help:    "Open watches by state: live ones are sent each event as it is dispatched, parked ones were live and replay from their position in the window, starting ones have not been live yet. Set once a second.",
			Labels:  []Label{{"state", watcherStates}},
			Purpose: "Says how many clients watch, and how many do not keep up.",
			Normal:  "Nearly all live.",
			High:    "parked: slow clients; the debug page names them. starting, for more than seconds: clients that do not read their initial events.",
		},
		cells: func(s *series) []cell { return s.watchers[:] },
	},
	{
		Description: Description{
			Name: NameWatcherLagEvents, Kind: Gauge,
			Help:    "How many events a watcher is behind the dispatcher: the one that is furthest behind (worst), and the median of all watchers. A live watcher is not behind. Set once a second.",
			Labels:  []Label{{"watcher", watcherRanks}},
			Purpose: "Says how far slow clients are behind; compare it with watchcache_window_events.",
			Normal:  "0.",
			High:    "worst: one client is slow, and expires when its lag exceeds the window. median: most are: the server is short of CPU or network.",
		},
		cells: func(s *series) []cell { return s.lagEvents[:] },
	},
	{
		Description: Description{
			Name: NameWatcherLagSeconds, Kind: Gauge,
			Help:    "Age of the first event that a watcher has not been sent, in seconds: for the watcher that is furthest behind (worst), and the median of all watchers. 0 for a live watcher. Set once a second.",
			Labels:  []Label{{"watcher", watcherRanks}},
			Purpose: "Says how old the state is that slow clients see; compare it with watchcache_window_seconds.",
			Normal:  "0.",
			High:    "As watchcache_watcher_lag_events.",
		},
		cells: func(s *series) []cell { return s.lagSeconds[:] },
	},
	{
		Description: Description{
			Name: NameParked, Kind: Counter,
			Help:    "Times a live watcher did not keep up and was parked.",
			Purpose: "Shows slow clients.",
			Normal:  "A few in a burst of changes, each followed by a resumption.",
			High:    "Clients are too slow for the rate of changes: the debug page names them; a larger WatchBuffer helps with short bursts.",
		},
		cells: func(s *series) []cell { return s.parkings[:] },
	},
	{
		Description: Description{
			Name: NameResumed, Kind: Counter,
			Help:    "Times a parked watcher caught up and went live again.",
			Purpose: "Shows that parked watchers recover.",
			Normal:  "As watchcache_watchers_parked_total.",
			High:    "Less than the parked ones over minutes: watchers stay behind and will expire.",
		},
		cells: func(s *series) []cell { return s.resumptions[:] },
	},
	{
		Description: Description{
			Name: NameExpired, Kind: Counter,
			Help:    "Times the window no longer had the events that a parked watcher was to be sent.",
			Purpose: "Counts clients that are told 410 and must list.",
			Normal:  "0.",
			High:    "The window is too short for these clients: raise WindowBytes or EventsHistoryWindow, or make the clients faster.",
		},
		cells: func(s *series) []cell { return s.expired[:] },
	},
	{
		Description: Description{
			Name: NameBeyondWindow, Kind: Counter,
			Help:    "Times a watch resumed, or a parked watcher went on, although events after its position had left the window: none of them was for the watch.",
			Purpose: "Shows quiet clients that need not list although others have filled the window.",
			Normal:  "0, or a few where some namespaces or index values change much more often than others.",
			High:    "The window is short for the rate of changes: watches of everything that resume as far back are told 410.",
		},
		cells: func(s *series) []cell { return s.beyondWindow[:] },
	},
	{
		Description: Description{
			Name: NameEnded, Kind: Counter,
			Help:    "Watches that ended, by reason: stopped by the client, deadline reached, position expired, cache relisted, storage unable to deliver an event (failed), parked for too long, initial events not taken for too long (stalled), initial events that kept too much memory (heavy), or cache shut down.",
			Labels:  []Label{{"reason", endReasons}},
			Purpose: "Says why clients must watch again.",
			Normal:  "stopped and deadline.",
			High:    "expired, parked, stalled, heavy: slow clients. relist: see watchcache_relists_total. failed: see watchcache_paused.",
		},
		cells: func(s *series) []cell { return s.ended[:] },
	},
}
