// SPDX-License-Identifier: Apache-2.0

package metrics

// This file lists the values of labels in addition to group and resource. Each label has a type, so
// misspelt values don't compile. The value 0 and unlisted values count as other, which makes
// mistakes visible without adding series.

// other is the label value for everything without a constant.
const other = "other"

// EventType is the type of an event from storage.
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

// Decision is the way in which a read is answered.
type Decision uint8

const (
	DecisionLatest     Decision = iota + 1 // from the latest state
	DecisionConsistent                     // as new as storage after the read arrived
	DecisionExact                          // from the state at one resourceVersion
	DecisionContinue                       // from the state of a continue token
	DecisionDelegate                       // by storage
	DecisionRefuse                         // with an error to retry
)

var decisions = [...]string{
	other, DecisionLatest: "latest", DecisionConsistent: "consistent", DecisionExact: "exact",
	DecisionContinue: "continue", DecisionDelegate: "delegate", DecisionRefuse: "refuse",
}

func (d Decision) String() string { return *pick(decisions[:], d) }

// FallbackAnswer is the outcome of a consistent read whose cache did not become fresh in time.
type FallbackAnswer uint8

const (
	FallbackReadFromStorage FallbackAnswer = iota + 1 // storage answered the read
	FallbackReadRefused                               // with a Retry-After
)

var fallbackAnswers = [...]string{other, FallbackReadFromStorage: "storage", FallbackReadRefused: "refused"}

// ListFallback is the fallback of a consistent LIST that the cache could not serve.
type ListFallback uint8

const (
	FallbackNone    ListFallback = iota // nothing, the LIST failed
	FallbackStorage                     // storage
	FallbackRefused                     // an error with a Retry-After
	listFallbacks                       // the number of values
)

// CheckResult is the result of a comparison of the cache with its storage.
type CheckResult uint8

const (
	CheckPassed CheckResult = iota + 1 // cache and storage are equal
	CheckFailed                        // cache and storage differ
	CheckError                         // the comparison failed
)

var checkResults = [...]string{other, CheckPassed: "passed", CheckFailed: "failed", CheckError: "error"}

// EndReason is the reason why a watcher ended.
type EndReason uint8

const (
	EndStopped  EndReason = iota + 1 // the client stopped the watch
	EndDeadline                      // the deadline of the watch passed
	EndExpired                       // the position of the watcher left the window
	EndRelist                        // the cache relisted
	EndFailed                        // storage could not deliver an event
	EndStalled                       // the client did not read its initial events in time
	EndHeavy                         // the initial events of the watcher took too much memory
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
	BytesObjects   BytesPart = iota + 1 // including all that they refer to
	BytesWindow                         // the window, beyond the objects
	BytesEncodings                      // the kept serializations
	// BytesIndexes is the trees of keys and index values, and the positions of events for resuming
	// watchers.
	BytesIndexes
	BytesSnapshots // the initial events of watches, beyond the objects
)

var bytesParts = [...]string{
	other, BytesObjects: "objects", BytesWindow: "window",
	BytesEncodings: "encodings", BytesIndexes: "indexes", BytesSnapshots: "snapshots",
}

// Stage is a stage of an event's way through the cache.
type Stage uint8

const (
	StageFeed     Stage = iota + 1 // computing key and attributes, changing the state
	StageQueue                     // the event waits in the window for the dispatcher
	StageDispatch                  // finding the event's watchers and sending
)

var stages = [...]string{other, StageFeed: "feed", StageQueue: "queue", StageDispatch: "dispatch"}

// WatcherState is the state of a watcher.
type WatcherState uint8

const (
	WatcherLive     WatcherState = iota + 1 // the dispatcher sends each event to the watcher
	WatcherParked                           // formerly live, replays the window
	WatcherStarting                         // not live yet
)

var watcherStates = [...]string{other, WatcherLive: "live", WatcherParked: "parked", WatcherStarting: "starting"}

// WatcherRank is a rank among all watchers by lag.
type WatcherRank uint8

const (
	WatcherWorst  WatcherRank = iota + 1 // the largest lag
	WatcherMedian                        // the median lag
)

var watcherRanks = [...]string{other, WatcherWorst: "worst", WatcherMedian: "median"}

// RelistCause is the reason why a cache listed its storage.
type RelistCause uint8

const (
	RelistOther         RelistCause = iota // unknown
	RelistStart                            // the cache had no state yet
	RelistExpired                          // storage dropped the events after a broken watch
	RelistBehind                           // too many versions for a watch to catch up
	RelistInconsistent                     // the cache differed from its storage
	RelistChange                           // a change could not be applied
	RelistUndeliverable                    // the storage could not deliver a change
	RelistRestored                         // storage returned to an older version
)

var relistCauses = [...]string{
	other, RelistStart: "start", RelistExpired: "expired", RelistBehind: "behind",
	RelistInconsistent: "inconsistent", RelistChange: "change", RelistUndeliverable: "undeliverable", RelistRestored: "restored",
}

func (c RelistCause) String() string { return *pick(relistCauses[:], c) }

// VersionResult is the outcome of a request for storage's version.
type VersionResult uint8

const (
	VersionOK         VersionResult = iota + 1 // storage answered
	VersionError                               // with an error, or storage was unreachable
	VersionUnanswered                          // no answer within the reads' maximum wait
	VersionSuperseded                          // a later request was answered first
	// VersionAbandoned is a request given up for a reason other than storage: its reads ended
	// before their maximum wait, or an older request of theirs counts as unanswered.
	VersionAbandoned
)

var versionResults = [...]string{
	other, VersionOK: "ok", VersionError: "error",
	VersionUnanswered: "unanswered", VersionSuperseded: "superseded", VersionAbandoned: "abandoned",
}

// ShadowKind is a kind of request compared by a shadow.
type ShadowKind uint8

const (
	ShadowGet   ShadowKind = iota + 1 // a response to a GET
	ShadowList                        // a response to a LIST
	ShadowWatch                       // an event, or the initial state of a watch
)

var shadowKinds = [...]string{other, ShadowGet: "get", ShadowList: "list", ShadowWatch: "watch"}

func (k ShadowKind) String() string { return *pick(shadowKinds[:], k) }

// ShadowSkip is the reason why a selected request was not compared.
type ShadowSkip uint8

const (
	ShadowNoRoom  ShadowSkip = iota + 1 // too many comparisons, or too much memory
	ShadowExcused                       // one side could not answer at the other's version
)

var shadowSkips = [...]string{other, ShadowNoRoom: "room", ShadowExcused: "excused"}

// ByKeys is the index label's value for reads without an index.
const ByKeys = "keys"
