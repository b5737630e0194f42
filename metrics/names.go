// SPDX-License-Identifier: Apache-2.0

package metrics

// The names of the metrics that describe a cache's state.
const (
	NameReady                  Name = "watchcache_ready"
	NamePaused                 Name = "watchcache_paused"
	NameAsleep                 Name = "watchcache_asleep"
	NameWokenUp                Name = "watchcache_woken_up_total"
	NameObjects                Name = "watchcache_objects"
	NameBytes                  Name = "watchcache_bytes"
	NameWindowEvents           Name = "watchcache_window_events"
	NameWindowSeconds          Name = "watchcache_window_seconds"
	NameWindowCut              Name = "watchcache_window_cut_events_total"
	NameInitialSnapshots       Name = "watchcache_initial_snapshots"
	NameResourceVersion        Name = "watchcache_resource_version"
	NameOldestResourceVersion  Name = "watchcache_oldest_resource_version"
	NameStorageResourceVersion Name = "watchcache_storage_resource_version"
)

// The names of the metrics of events and watchers.
const (
	NameEvents            Name = "watchcache_events_total"
	NameDispatchLag       Name = "watchcache_dispatch_lag_seconds"
	NameStageDuration     Name = "watchcache_stage_duration_seconds"
	NameCandidates        Name = "watchcache_dispatch_candidates_total"
	NameMatches           Name = "watchcache_dispatch_matches_total"
	NameEvaluations       Name = "watchcache_dispatch_evaluations_total"
	NameEvaluationsSaved  Name = "watchcache_dispatch_evaluations_saved_total"
	NameDelivered         Name = "watchcache_delivered_events_total"
	NameInitial           Name = "watchcache_initial_events_total"
	NameEncodings         Name = "watchcache_encodings_total"
	NameEncodingsShared   Name = "watchcache_encodings_shared_total"
	NameWatchers          Name = "watchcache_watchers"
	NameWatcherLagEvents  Name = "watchcache_watcher_lag_events"
	NameWatcherLagSeconds Name = "watchcache_watcher_lag_seconds"
	NameParked            Name = "watchcache_watchers_parked_total"
	NameResumed           Name = "watchcache_watchers_resumed_total"
	NameExpired           Name = "watchcache_watchers_expired_total"
	NameBeyondWindow      Name = "watchcache_watchers_beyond_window_total"
	NameEnded             Name = "watchcache_watchers_ended_total"
)

// The names of the metrics of reads.
const (
	NameReads               Name = "watchcache_reads_total"
	NameReadDuration        Name = "watchcache_read_duration_seconds"
	NameReadWait            Name = "watchcache_read_wait_seconds"
	NameStaleReads          Name = "watchcache_stale_reads_total"
	NameReadsByIndex        Name = "watchcache_reads_by_index_total"
	NameEvaluated           Name = "watchcache_list_evaluated_objects_total"
	NameListed              Name = "watchcache_list_returned_objects_total"
	NameVersionRequests     Name = "watchcache_version_requests_total"
	NameVersionDuration     Name = "watchcache_version_request_duration_seconds"
	NameVersionRequestReads Name = "watchcache_version_request_reads_total"
)

// The names of the metrics of the storage and of what the cache does to agree
// with it.
const (
	NameStorageSilence    Name = "watchcache_storage_silence_seconds"
	NameRelists           Name = "watchcache_relists_total"
	NameWatchesBroken     Name = "watchcache_storage_watches_broken_total"
	NameUndeliverable     Name = "watchcache_storage_undeliverable_total"
	NameConsistencyChecks Name = "watchcache_consistency_checks_total"
)
