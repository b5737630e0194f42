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

const (
	EventAdded EventType = iota + 1
	EventModified
	EventDeleted
	EventBookmark
)

var eventTypes = [...]string{other, EventAdded: "ADDED", EventModified: "MODIFIED", EventDeleted: "DELETED", EventBookmark: "BOOKMARK"}

func (t EventType) String() string { return *pick(eventTypes[:], t) }

// Verb is the kind of a read.
type Verb uint8

const (
	VerbGet Verb = iota + 1
	VerbList
)

var verbs = [...]string{other, VerbGet: "get", VerbList: "list"}

// Decision is how a read is answered.
type Decision uint8

const (
	DecisionLatest     Decision = iota + 1 // from the latest state
	DecisionConsistent                     // as new as storage was after the read had arrived
	DecisionExact                          // from the state at one resourceVersion
	DecisionContinue                       // from the state that a continue token names
	DecisionDelegate                       // by storage
	DecisionRefuse                         // with an error that tells the client to retry
)

var decisions = [...]string{
	other, DecisionLatest: "latest", DecisionConsistent: "consistent", DecisionExact: "exact",
	DecisionContinue: "continue", DecisionDelegate: "delegate", DecisionRefuse: "refuse",
}

func (d Decision) String() string { return *pick(decisions[:], d) }

// FallbackAnswer is the outcome of a consistent read whose cache did not become fresh in
// time.
type FallbackAnswer uint8

const (
	FallbackReadFromStorage FallbackAnswer = iota + 1 // storage answered the read
	FallbackReadRefused                               // the client got an error with a Retry-After
)

var fallbackAnswers = [...]string{other, FallbackReadFromStorage: "storage", FallbackReadRefused: "refused"}

// ListFallback is the fallback of a consistent LIST that the cache could not serve.
type ListFallback uint8

const (
	FallbackNone    ListFallback = iota // nothing, the LIST has failed
	FallbackStorage                     // storage was asked
	FallbackRefused                     // the client got an error with a Retry-After
	listFallbacks                       // the number of values
)

// CheckResult is the result of a comparison of the cache with its storage.
type CheckResult uint8

const (
	CheckPassed CheckResult = iota + 1 // cache and storage have the same
	CheckFailed                        // cache and storage differ
	CheckError                         // the comparison could not be made
)

var checkResults = [...]string{other, CheckPassed: "passed", CheckFailed: "failed", CheckError: "error"}

// EndReason is why a watcher ended.
type EndReason uint8

const (
	EndStopped  EndReason = iota + 1 // the client stopped the watch
	EndDeadline                      // the deadline of the watch was reached
	EndExpired                       // the position of the watcher left the window
	EndRelist                        // the cache was listed again
	EndFailed                        // storage could not deliver an event
	EndStalled                       // the client did not take its initial events for too long
	EndHeavy                         // the initial events of the watcher kept too much memory
	EndShutdown                      // the cache was stopped
)

var endReasons = [...]string{
	other, EndStopped: "stopped", EndDeadline: "deadline", EndExpired: "expired", EndRelist: "relist",
	EndFailed: "failed", EndStalled: "stalled", EndHeavy: "heavy", EndShutdown: "shutdown",
}

func (r EndReason) String() string { return *pick(endReasons[:], r) }

// BytesPart is a part of a cache's memory.
type BytesPart uint8

const (
	BytesObjects   BytesPart = iota + 1 // the objects, with all that they refer to
	BytesWindow                         // the window, beyond the objects
	BytesEncodings                      // the serializations that are kept
	// BytesIndexes: the trees of keys and of index values, and what watchers that
	// resume find their events by.
	BytesIndexes
	BytesSnapshots // the initial events of watches, beyond the objects
)

var bytesParts = [...]string{
	other, BytesObjects: "objects", BytesWindow: "window",
	BytesEncodings: "encodings", BytesIndexes: "indexes", BytesSnapshots: "snapshots",
}

// Stage is a part of the way of an event through the cache.
type Stage uint8

const (
	StageFeed     Stage = iota + 1 // key and attributes are computed, and the state is changed
	StageQueue                     // the event waits in the window for the dispatcher
	StageDispatch                  // the watchers that the event is for are found, and sent it
)

var stages = [...]string{other, StageFeed: "feed", StageQueue: "queue", StageDispatch: "dispatch"}

// WatcherState is the state of a watcher.
type WatcherState uint8

const (
	WatcherLive     WatcherState = iota + 1 // the dispatcher sends each event to the watcher
	WatcherParked                           // the watcher was live, and replays the window
	WatcherStarting                         // the watcher has not been live yet
)

var watcherStates = [...]string{other, WatcherLive: "live", WatcherParked: "parked", WatcherStarting: "starting"}

// WatcherRank is the place of a watcher among all watchers by their lag.
type WatcherRank uint8

const (
	WatcherWorst  WatcherRank = iota + 1 // the watcher that lags most
	WatcherMedian                        // the watcher that half of the others lag less than
)

var watcherRanks = [...]string{other, WatcherWorst: "worst", WatcherMedian: "median"}

// RelistCause is why a cache listed its storage.
type RelistCause uint8

const (
	RelistOther         RelistCause = iota // no cause is known
	RelistStart                            // the cache had no state yet
	RelistExpired                          // storage has no events after a broken watch any more
	RelistBehind                           // too many versions for a watch to catch up
	RelistInconsistent                     // the cache was found to differ from its storage
	RelistChange                           // a change could not be applied
	RelistUndeliverable                    // the storage could not deliver a change
	RelistRestored                         // the storage is below a version that it had before
)

var relistCauses = [...]string{
	other, RelistStart: "start", RelistExpired: "expired", RelistBehind: "behind",
	RelistInconsistent: "inconsistent", RelistChange: "change", RelistUndeliverable: "undeliverable", RelistRestored: "restored",
}

func (c RelistCause) String() string { return *pick(relistCauses[:], c) }

// VersionResult is what became of a request for the storage's version.
type VersionResult uint8

const (
	VersionOK         VersionResult = iota + 1 // the storage answered
	VersionError                               // with an error, or it could not be reached
	VersionUnanswered                          // no answer while reads waited as long as they may
	VersionSuperseded                          // the answer to a later request came first
	// VersionAbandoned: the request was given up, and not because of the storage: its
	// reads were gone before they had waited for as long as they may, or an older
	// request of theirs counts as unanswered.
	VersionAbandoned
)

var versionResults = [...]string{
	other, VersionOK: "ok", VersionError: "error",
	VersionUnanswered: "unanswered", VersionSuperseded: "superseded", VersionAbandoned: "abandoned",
}

// ShadowKind is a kind of request that a shadow compares.
type ShadowKind uint8

const (
	ShadowGet   ShadowKind = iota + 1 // a response to a GET
	ShadowList                        // a response to a LIST
	ShadowWatch                       // an event, or the initial state of a watch
)

var shadowKinds = [...]string{other, ShadowGet: "get", ShadowList: "list", ShadowWatch: "watch"}

func (k ShadowKind) String() string { return *pick(shadowKinds[:], k) }

// ShadowSkip is why a request that was drawn for a comparison was not compared.
type ShadowSkip uint8

const (
	ShadowNoRoom  ShadowSkip = iota + 1 // too many were under way, or kept too much memory
	ShadowExcused                       // a side could not answer at the version of the other
)

var shadowSkips = [...]string{other, ShadowNoRoom: "room", ShadowExcused: "excused"}

// ByKeys is the value of the index label for reads that use no index.
const ByKeys = "keys"
