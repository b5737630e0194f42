// SPDX-License-Identifier: Apache-2.0

package metrics

import "slices"

// Name is the full name of a metric, as Prometheus exports it.
type Name string

// Kind is the Prometheus type of a metric.
type Kind string

// The kinds of metrics. A histogram has classic buckets, and native ones for a Prometheus that
// requests them.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Label is a label in addition to group and resource.
type Label struct {
	Name string
	// Values are all possible values. It is empty if they depend on the cache's configuration.
	Values []string
}

// Description describes a metric. Collectors, documentation, dashboards and alert rules are
// generated from List.
type Description struct {
	Name   Name
	Kind   Kind
	Help   string
	Labels []Label
	// Buckets are the upper bounds of the classic buckets.
	Buckets []float64
	// Asleep is true if a sleeping cache exports the metric.
	Asleep bool
}

// List returns the descriptions of all metrics, in the order of the documentation. The caller owns
// the result.
func List() []Description {
	out := make([]Description, len(specs))
	for i, s := range specs {
		out[i] = s.about
		out[i].Name, out[i].Kind = s.name, s.kind
		out[i].Buckets, out[i].Labels = slices.Clone(s.about.Buckets), slices.Clone(s.about.Labels)
		for l := range s.about.Labels {
			out[i].Labels[l].Values = slices.Clone(s.about.Labels[l].Values)
		}
	}
	return out
}

// spec is one metric.
type spec struct {
	name Name
	kind Kind
	// values returns the metric's values: a []cell or []lazyHistogram indexed by all label values
	// (see series), *namedCounters by the value of the only label, or a float64, nil if unknown.
	values func(view) any
	about  Description // without Name and Kind
}

// Bounds of classic buckets, in seconds.
var (
	waitBuckets    = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10}
	requestBuckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10, 30}
	stageBuckets   = []float64{0.000005, 0.00001, 0.000025, 0.0001, 0.00025, 0.001, 0.0025, 0.01, 0.1, 1, 10}
	readBuckets    = []float64{0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10}
)

// Names of metrics, grouped by state, events and watchers, reads, and storage.
const (
	NameReady                  Name = "watchcache_ready"
	NamePaused                 Name = "watchcache_paused"
	NameAsleep                 Name = "watchcache_asleep"
	NameWokenUp                Name = "watchcache_woken_up_total"
	NameObjects                Name = "watchcache_objects"
	NameIndexes                Name = "watchcache_indexes"
	NameBytes                  Name = "watchcache_bytes"
	NameWindowEvents           Name = "watchcache_window_events"
	NameWindowSeconds          Name = "watchcache_window_seconds"
	NameWindowCut              Name = "watchcache_window_cut_events_total"
	NameInitialSnapshots       Name = "watchcache_initial_snapshots"
	NameResourceVersion        Name = "watchcache_resource_version"
	NameOldestResourceVersion  Name = "watchcache_oldest_resource_version"
	NameStorageResourceVersion Name = "watchcache_storage_resource_version"

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

	NameReads               Name = "watchcache_reads_total"
	NameReadDuration        Name = "watchcache_read_duration_seconds"
	NameReadWait            Name = "watchcache_read_wait_seconds"
	NameFallbackReads       Name = "watchcache_fallback_reads_total"
	NameReadsByIndex        Name = "watchcache_reads_by_index_total"
	NameEvaluated           Name = "watchcache_list_evaluated_objects_total"
	NameListed              Name = "watchcache_list_returned_objects_total"
	NameVersionRequests     Name = "watchcache_version_requests_total"
	NameVersionDuration     Name = "watchcache_version_request_duration_seconds"
	NameVersionRequestReads Name = "watchcache_version_request_reads_total"

	NameStorageSilence    Name = "watchcache_storage_silence_seconds"
	NameRelists           Name = "watchcache_relists_total"
	NameWatchesBroken     Name = "watchcache_storage_watches_broken_total"
	NameUndeliverable     Name = "watchcache_storage_undeliverable_total"
	NameConsistencyChecks Name = "watchcache_consistency_checks_total"
	NameShadowCompared    Name = "watchcache_shadow_compared_total"
	NameShadowDiffered    Name = "watchcache_shadow_differed_total"
	NameShadowSkipped     Name = "watchcache_shadow_skipped_total"
)
