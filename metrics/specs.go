// SPDX-License-Identifier: Apache-2.0

package metrics

// prefix begins the name of every metric of this project.
const prefix = "watchcache_"

// kind is the Prometheus type of a metric.
type kind string

const (
	gauge     kind = "gauge"
	counter   kind = "counter"
	histogram kind = "histogram"
)

// other replaces a label value that the list below does not know, so that a
// caller's mistake is visible and can't grow the number of series.
const other = "other"

// label is a label beyond group and resource, with all the values it can have.
type label struct {
	name   string
	values []string
}

// spec describes one metric. Collectors are made from the list of specs and
// from nothing else; whatever describes the metrics to people (dashboards,
// alert rules, documentation) is to be made from the same list.
type spec struct {
	name    string // without the prefix
	kind    kind
	help    string
	labels  []label
	buckets []float64 // upper bounds, for a histogram
	always  bool      // a cache has it also while it sleeps
}

// Names of the specs, by which a series finds its collectors.
const (
	nameObjects         = "objects"
	nameResourceVersion = "resource_version"
	nameWindowEvents    = "window_events"
	nameWindowBytes     = "window_bytes"
	nameWatchers        = "watchers"
	nameEvents          = "events_total"
	nameCandidates      = "dispatch_candidates_total"
	nameDelivered       = "delivered_events_total"
	nameInitial         = "initial_events_total"
	nameReads           = "reads_total"
	nameStaleReads      = "stale_reads_total"
	nameEvaluated       = "list_evaluated_objects_total"
	nameListed          = "list_returned_objects_total"
	nameConsistency     = "consistency_checks_total"
	nameParked          = "watchers_parked_total"
	nameResumed         = "watchers_resumed_total"
	nameExpired         = "watchers_expired_total"
	nameEnded           = "watchers_ended_total"
	nameRelists         = "relists_total"
	nameWatchesBroken   = "storage_watches_broken_total"
	nameUndeliverable   = "storage_undeliverable_total"
	nameVersionRequests = "version_requests_total"
	nameAsleep          = "asleep"
	nameWokenUp         = "woken_up_total"
	nameReadWait        = "read_wait_seconds"
)

// Positions of the two values of the state label of nameWatchers.
const (
	stateLive   = "live"
	stateParked = "parked"
)

// specs is the list. Every metric has the labels group and resource, and
// then its own.
var specs = []spec{
	{
		name: nameObjects, kind: gauge,
		help: "Objects that the cache holds.",
	},
	{
		name: nameResourceVersion, kind: gauge,
		help: "Resource version that the cache has reached. Exact up to 2^53.",
	},
	{
		name: nameWindowEvents, kind: gauge,
		help: "Events kept in the window of recent changes.",
	},
	{
		name: nameWindowBytes, kind: gauge,
		help: "Estimated size of the window of recent changes, in bytes.",
	},
	{
		name: nameWatchers, kind: gauge,
		help:   "Open watches by state: live ones are sent each event as it is dispatched, parked ones replay from their position in the window.",
		labels: []label{{"state", []string{stateLive, stateParked}}},
	},
	{
		name: nameEvents, kind: counter,
		help:   "Events that the cache received from its storage, by type.",
		labels: []label{{"type", []string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK", other}}},
	},
	{
		name: nameCandidates, kind: counter,
		help: "Watchers that the index named for an event, before their selectors were asked.",
	},
	{
		name: nameDelivered, kind: counter,
		help: "Events handed to watchers, one for each watcher that got it.",
	},
	{
		name: nameInitial, kind: counter,
		help: "Objects sent to watchers as their initial state.",
	},
	{
		name: nameReads, kind: counter,
		help: "GET and LIST requests by the way they were answered: from the latest state, at an exact version, by a continue token, as fresh as storage, delegated to storage, or refused.",
		labels: []label{
			{"verb", []string{"get", "list", other}},
			{"decision", []string{"latest", "exact", "continue", "consistent", "delegate", "refuse", other}},
		},
	},
	{
		name: nameStaleReads, kind: counter,
		help:   "Consistent GET and LIST requests for which the cache did not become fresh in time, by what became of them: passed on to storage, or refused because too many were.",
		labels: []label{{"answer", []string{"storage", "refused", other}}},
	},
	{
		name: nameEvaluated, kind: counter,
		help: "Objects that LIST requests looked at, in the range of keys or of an index that was read.",
	},
	{
		name: nameListed, kind: counter,
		help: "Objects that LIST requests returned from the cache.",
	},
	{
		name: nameConsistency, kind: counter,
		help:   "Comparisons of the cache with its storage at one resource version, by result: passed, failed, or error where none could be made.",
		labels: []label{{"result", []string{"passed", "failed", "error", other}}},
	},
	{
		name: nameParked, kind: counter,
		help: "Times a live watcher did not keep up and was parked.",
	},
	{
		name: nameResumed, kind: counter,
		help: "Times a parked watcher caught up and went live again.",
	},
	{
		name: nameExpired, kind: counter,
		help: "Times the window no longer had the events that a parked watcher was to be sent.",
	},
	{
		name: nameEnded, kind: counter,
		help:   "Watches that ended, by reason: stopped by the client, deadline reached, position expired, cache relisted, storage unable to deliver an event, parked for too long, or cache shut down.",
		labels: []label{{"reason", []string{"stopped", "deadline", "expired", "relist", "failed", "parked", "shutdown", other}}},
	},
	{
		name: nameRelists, kind: counter,
		help: "Full lists by which the cache resynchronised with its storage.",
	},
	{
		name: nameWatchesBroken, kind: counter,
		help: "Watches on the storage that broke and were resumed.",
	},
	{
		name: nameUndeliverable, kind: counter,
		help: "Times the storage answered but had an event or an object that it could not deliver. The log and the status say which.",
	},
	{
		name: nameVersionRequests, kind: counter,
		help: "Requests to the storage for its current resource version.",
	},
	{
		name: nameAsleep, kind: gauge, always: true,
		help: "1 while the cache sleeps: it was not used yet, or not for its idle timeout. Else 0.",
	},
	{
		name: nameWokenUp, kind: counter, always: true,
		help: "Times a request started the cache, or woke it up. All its other counters begin anew then.",
	},
	{
		name: nameReadWait, kind: histogram,
		help:    "Time that reads waited for the cache to be fresh enough, in seconds.",
		buckets: []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 3, 10},
	},
}
