// SPDX-License-Identifier: Apache-2.0

package metrics

// This file lists the values of the labels beyond group and resource. Each
// label has a type, so that a misspelled value does not compile. The value 0
// and every value that is not listed here are counted as other, so that a
// mistake is visible in the metrics and does not add series.

// other is the label value of what no constant stands for.
const other = "other"

// EventType is the type of an event that came from storage.
type EventType uint8

// The types of events that come from storage.
const (
	EventAdded EventType = iota + 1
	EventModified
	EventDeleted
	EventBookmark
	eventTypesEnd // the number of values
)

var eventTypes = []string{other, EventAdded: "ADDED", EventModified: "MODIFIED", EventDeleted: "DELETED", EventBookmark: "BOOKMARK"}

// String returns the label value.
func (t EventType) String() string { return valueOf(eventTypes, t) }

// Verb is the kind of a read.
type Verb uint8

// The kinds of reads.
const (
	VerbGet Verb = iota + 1
	VerbList
	verbsEnd // the number of values
)

var verbs = []string{other, VerbGet: "get", VerbList: "list"}

// Decision is how a read is answered.
type Decision uint8

// The decisions.
const (
	// DecisionLatest: from the latest state.
	DecisionLatest Decision = iota + 1
	// DecisionConsistent: from a state as new as storage was after the read had
	// arrived.
	DecisionConsistent
	// DecisionExact: from the state at one resourceVersion.
	DecisionExact
	// DecisionContinue: from the state that a continue token names.
	DecisionContinue
	// DecisionDelegate: by storage.
	DecisionDelegate
	// DecisionRefuse: with an error that tells the client to retry.
	DecisionRefuse
	decisionsEnd // the number of values
)

var decisions = []string{
	other, DecisionLatest: "latest", DecisionConsistent: "consistent", DecisionExact: "exact",
	DecisionContinue: "continue", DecisionDelegate: "delegate", DecisionRefuse: "refuse",
}

// String returns the label value.
func (d Decision) String() string { return valueOf(decisions, d) }

// StaleAnswer is the outcome of a consistent read whose cache did not become fresh in
// time.
type StaleAnswer uint8

// The outcomes of consistent reads of a stale cache.
const (
	// StaleFromStorage: storage answered the read.
	StaleFromStorage StaleAnswer = iota + 1
	// StaleRefused: the client got an error with a Retry-After.
	StaleRefused
	staleAnswersEnd // the number of values
)

var staleAnswers = []string{other, StaleFromStorage: "storage", StaleRefused: "refused"}

// ListFallback is the fallback of a consistent LIST that the cache could not serve.
type ListFallback uint8

// The ways out.
const (
	// FallbackNone: nothing, the LIST has failed.
	FallbackNone ListFallback = iota
	// FallbackStorage: storage was asked.
	FallbackStorage
	// FallbackRefused: the client got an error with a Retry-After.
	FallbackRefused
	listFallbacksEnd // the number of values
)

// CheckResult is the result of a comparison of the cache with its storage.
type CheckResult uint8

// The results of comparisons.
const (
	// CheckPassed: cache and storage have the same.
	CheckPassed CheckResult = iota + 1
	// CheckFailed: cache and storage differ.
	CheckFailed
	// CheckError: the comparison could not be made.
	CheckError
	checkResultsEnd // the number of values
)

var checkResults = []string{other, CheckPassed: "passed", CheckFailed: "failed", CheckError: "error"}

// EndReason is why a watcher ended.
type EndReason uint8

// The reasons why watchers end.
const (
	// EndStopped: the client stopped the watch.
	EndStopped EndReason = iota + 1
	// EndDeadline: the deadline of the watch was reached.
	EndDeadline
	// EndExpired: the position of the watcher left the window.
	EndExpired
	// EndRelist: the cache was listed again.
	EndRelist
	// EndFailed: storage could not deliver an event.
	EndFailed
	// EndStalled: the client did not take its initial events for too long.
	EndStalled
	// EndHeavy: the initial events of the watcher kept too much memory.
	EndHeavy
	// EndShutdown: the cache was stopped.
	EndShutdown
	endReasonsEnd // the number of values
)

var endReasons = []string{
	other, EndStopped: "stopped", EndDeadline: "deadline", EndExpired: "expired", EndRelist: "relist",
	EndFailed: "failed", EndStalled: "stalled", EndHeavy: "heavy", EndShutdown: "shutdown",
}

// String returns the label value.
func (r EndReason) String() string { return valueOf(endReasons, r) }

// BytesPart is a part of a cache's memory.
type BytesPart uint8

// The parts of a cache's memory.
const (
	// BytesObjects: the objects, with all that they refer to.
	BytesObjects BytesPart = iota + 1
	// BytesWindow: the window, beyond the objects.
	BytesWindow
	// BytesEncodings: the serializations that are kept.
	BytesEncodings
	// BytesIndexes: the trees of keys and of index values, and what watchers that
	// resume find their events by.
	BytesIndexes
	// BytesSnapshots: the initial events of watches, beyond the objects.
	BytesSnapshots
	bytesPartsEnd // the number of values
)

var bytesParts = []string{
	other, BytesObjects: "objects", BytesWindow: "window",
	BytesEncodings: "encodings", BytesIndexes: "indexes", BytesSnapshots: "snapshots",
}

// Stage is a part of the way of an event through the cache.
type Stage uint8

// The stages of an event.
const (
	// StageFeed: key and attributes are computed, and the state is changed.
	StageFeed Stage = iota + 1
	// StageQueue: the event waits in the window for the dispatcher.
	StageQueue
	// StageDispatch: the watchers that the event is for are found, and sent it.
	StageDispatch
	stagesEnd // the number of values
)

var stages = []string{other, StageFeed: "feed", StageQueue: "queue", StageDispatch: "dispatch"}

// WatcherState is the state of a watcher.
type WatcherState uint8

// The states of watchers.
const (
	// WatcherLive: the dispatcher sends each event to the watcher.
	WatcherLive WatcherState = iota + 1
	// WatcherParked: the watcher was live, and replays the window.
	WatcherParked
	// WatcherStarting: the watcher has not been live yet.
	WatcherStarting
	watcherStatesEnd // the number of values
)

var watcherStates = []string{other, WatcherLive: "live", WatcherParked: "parked", WatcherStarting: "starting"}

// WatcherRank is the place of a watcher among all watchers by their lag.
type WatcherRank uint8

// The watchers whose lag is shown.
const (
	// WatcherWorst is the watcher that lags most.
	WatcherWorst WatcherRank = iota + 1
	// WatcherMedian is the watcher that half of the others lag less than.
	WatcherMedian
	watcherRanksEnd // the number of values
)

var watcherRanks = []string{other, WatcherWorst: "worst", WatcherMedian: "median"}

// RelistCause is why a cache listed its storage.
type RelistCause uint8

// The causes of lists.
const (
	// RelistOther: no cause is known.
	RelistOther RelistCause = iota
	// RelistStart: the cache had no state yet.
	RelistStart
	// RelistExpired: the storage no longer had the events after a broken watch.
	RelistExpired
	// RelistBehind: the cache was too many versions behind for a watch to catch
	// up.
	RelistBehind
	// RelistInconsistent: the cache was found to differ from its storage.
	RelistInconsistent
	// RelistChange: a change could not be applied.
	RelistChange
	// RelistUndeliverable: the storage could not deliver a change.
	RelistUndeliverable
	// RelistRestored: the storage is at a version below one that it was at before.
	RelistRestored
	relistCausesEnd // the number of values
)

var relistCauses = []string{
	other, RelistStart: "start", RelistExpired: "expired", RelistBehind: "behind",
	RelistInconsistent: "inconsistent", RelistChange: "change", RelistUndeliverable: "undeliverable", RelistRestored: "restored",
}

// String returns the label value.
func (c RelistCause) String() string { return valueOf(relistCauses, c) }

// VersionResult is what became of a request for the storage's version.
type VersionResult uint8

// The results of version requests.
const (
	// VersionOK: the storage answered.
	VersionOK VersionResult = iota + 1
	// VersionError: the storage answered with an error, or could not be reached.
	VersionError
	// VersionUnanswered: no answer came while reads waited for as long as they may.
	VersionUnanswered
	// VersionSuperseded: the answer to a later request came first.
	VersionSuperseded
	// VersionAbandoned: the request was given up, and not because of the storage: its
	// reads were gone before they had waited for as long as they may, or an older
	// request of theirs counts as unanswered.
	VersionAbandoned
	versionResultsEnd // the number of values
)

var versionResults = []string{
	other, VersionOK: "ok", VersionError: "error",
	VersionUnanswered: "unanswered", VersionSuperseded: "superseded", VersionAbandoned: "abandoned",
}

// ShadowKind is a kind of request that a shadow compares.
type ShadowKind uint8

// The kinds of comparisons with the shipped cacher.
const (
	// ShadowGet and ShadowList: a response.
	ShadowGet ShadowKind = iota + 1
	ShadowList
	// ShadowWatch: an event, or the initial state of a watch.
	ShadowWatch
	shadowKindsEnd // the number of values
)

var shadowKinds = []string{other, ShadowGet: "get", ShadowList: "list", ShadowWatch: "watch"}

// String returns the label value.
func (k ShadowKind) String() string { return valueOf(shadowKinds, k) }

// ShadowSkip is why a request that was drawn for a comparison was not compared.
type ShadowSkip uint8

// The reasons for no comparison.
const (
	// ShadowNoRoom: too many comparisons were under way, or they kept too much memory.
	ShadowNoRoom ShadowSkip = iota + 1
	// ShadowExcused: one side could not answer at the version of the other one.
	ShadowExcused
	shadowSkipsEnd // the number of values
)

var shadowSkips = []string{other, ShadowNoRoom: "room", ShadowExcused: "excused"}

// ByKeys is the value of the index label for reads that use no index.
const ByKeys = "keys"

// valueOf returns the label value of v, or other.
func valueOf[V ~uint8](values []string, v V) string {
	if int(v) >= len(values) {
		v = 0
	}
	return values[v]
}
