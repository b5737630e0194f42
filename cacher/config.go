// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
)

// The defaults of Config's optional fields.
const (
	// DefaultEventsHistoryWindow is one DefaultBookmarkInterval and a bit, so
	// that a client that resumes from its last bookmark finds it covered.
	DefaultEventsHistoryWindow = 75 * time.Second
	DefaultWindowBytes         = 128 << 20
	DefaultDispatchBudget      = 5 * time.Millisecond
	DefaultBookmarkInterval    = time.Minute
	DefaultFreshnessTimeout    = 3 * time.Second
	DefaultStorageTimeout      = 10 * time.Second
	DefaultStaleReads          = 10
	DefaultWatchBuffer         = 16
	DefaultEncodingBytes       = 32 << 20
	DefaultEncodingPercent     = 15

	// DefaultInitialEventsTimeout is longer than anything that a client which
	// means to go on would wait for.
	DefaultInitialEventsTimeout = time.Minute

	// DefaultConsistencyCheckInterval is etcd's usual compaction interval.
	DefaultConsistencyCheckInterval = 5 * time.Minute

	// maxWatchBuffer is 2 MiB of channel for each watch.
	maxWatchBuffer = 1 << 16
	// maxStaleReads is more LISTs than a storage answers at a time.
	maxStaleReads = 10_000
	// maxDuration and maxBytes are more than is of use, and little enough for
	// sums and multiples of them.
	maxDuration = 365 * 24 * time.Hour
	maxBytes    = 1 << 40
)

// Config says what a Cacher caches and how. The fields down to Clock are those
// of k8s.io/apiserver's cacher.Config with the same meaning; those after it
// have zero values that work. Durations are at most 8760 h, and timeouts at
// least 1 ms, since a number without a unit is nanoseconds; sizes are at most
// 1 TiB.
type Config struct {
	// Storage is what is wrapped: where writes go and changes come from. Its
	// watches must tell the truth in their event types (ADDED for a key that
	// was not there, and so on): the cache takes a contradiction for missed
	// events and lists again. Storage must not have another size estimator enabled.
	//
	// Storage may have five more methods. WatchProgress() bool reports whether it
	// answers RequestWatchProgress reliably, now; see WatchProgress below.
	// PrefersLists() bool reports whether it lists faster than it streams; see
	// ListStorage below. KeepsHistory() bool reports whether watches from earlier
	// versions, and lists at them, bring all that they should, or are refused as
	// expired: a cache that starts then fills its window with what was written before,
	// and clients resume that another server has left behind. If a watch of Storage has
	// a method Taken(version uint64), that cache tells by it, from the beginning on, how
	// far it has taken this history, so that no more of it need be in memory at a time.
	// Versions(ctx, prefix, rv, visit), see ConsistencyCheckInterval, calls
	// visit for each key as of exactly rv, in order, with the resourceVersion
	// of its last write; without it the objects are listed.
	// KeyVersions(ctx, keys) (versions []uint64, current uint64, err error)
	// returns, from one linearizable read, the resourceVersion of the last write
	// of each key, 0 for one that does not exist, and that of storage; with it
	// a GET without a resourceVersion waits for the writes of its object only.
	Storage storage.Interface
	// Versioner reads and sets resourceVersions.
	Versioner storage.Versioner
	// GroupResource names the resource in logs, metrics and errors.
	GroupResource schema.GroupResource
	// EventsHistoryWindow is for how long events are kept for watchers that
	// resume, as far as WindowBytes allows. 0: 75 s.
	EventsHistoryWindow time.Duration
	// ResourcePrefix is the key prefix of the resource's objects, "/devices"
	// or "/devices/".
	ResourcePrefix string
	// KeyFunc returns an object's storage key, ResourcePrefix included.
	// An object whose key is elsewhere is reported in Status and not served.
	KeyFunc func(runtime.Object) (string, error)
	// GetAttrsFunc returns what selectors select by: an object's labels and
	// its selectable fields. Both are shared from then on and not written.
	GetAttrsFunc func(runtime.Object) (labels.Set, fields.Set, error)
	// IndexerFuncs are trigger functions by field name. A watcher whose field
	// selector requires one value of the field is looked up by the function's
	// value instead of the field's. Any number of them.
	IndexerFuncs storage.IndexerFuncs
	// Indexers are indexes for reads by index name, which is
	// storage.FieldIndex(field) or storage.LabelIndex(label) of the selector
	// that it serves. Any number of them.
	Indexers *cache.Indexers
	// NewFunc returns an empty object, NewListFunc an empty list.
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object
	// Codec is what Storage stores objects with. The cache only checks that it fits.
	Codec runtime.Codec
	// Clock is what time is taken from. nil: the real one.
	Clock clock.WithTicker

	// ListStorage makes the cache fill itself by listing Storage, and not by a
	// watch that begins with the state (KEP-3157). A Storage that can't stream
	// its state is listed in any case: it says so by a method
	// IsWatchListSemanticsUnSupported() bool, as client-go's clients do, or is
	// found out within seconds. So is one that has a method PrefersLists() bool
	// which returns true, as those of storage/etcd3: a list is several times
	// cheaper there. Decorator sets it where the feature gate WatchList is off,
	// for k8s.io/apiserver's storage then takes no notice of being asked, and
	// without WithRawStorage, for that storage is as cheap to list. false: the
	// state is streamed.
	ListStorage bool
	// LabelIndexes are label keys to keep an index for, for reads whose label
	// selector requires certain values of the label.
	LabelIndexes []string
	// WatchProgress reports whether Storage answers RequestWatchProgress
	// reliably at this time; consistent reads and streamed lists are served
	// from the cache only then. nil: Storage is asked if it has a method
	// WatchProgress() bool, else the process-wide etcd feature checker.
	WatchProgress func() bool
	// WindowBytes bounds the memory that the window of events takes beyond
	// the current state, in bytes: the decoded objects with all that they
	// refer to, estimated on the high side. 0: 128 MiB.
	//
	// Events that were not dispatched yet stay beyond it, up to twice as much, or
	// 16 MiB if that is more. Above that they go, and watchers that have not got
	// them end with 410. Only the events of one revision are never parted: they
	// stay until the last of them has come.
	WindowBytes int64
	// DispatchBudget is for how long, in every second, dispatch may wait for
	// watchers with full channels in all before it parks them. 0: 5 ms;
	// negative: it never waits.
	DispatchBudget time.Duration
	// BookmarkInterval is the time between two bookmarks of a watcher that
	// asked for bookmarks. 0: 60 s.
	BookmarkInterval time.Duration
	// FreshnessTimeout is how long a read waits for the cache to reach the
	// resourceVersion it needs, the question to Storage for that version
	// included. A GET waits a sixth of it, and is then answered by Storage.
	// 0: 3 s.
	FreshnessTimeout time.Duration
	// StorageTimeout is for how long Storage may leave requests unanswered before
	// it counts as lost, which is logged. Reads that have waited for the cache in
	// vain, and go to Storage, end then (504), and so do later ones: a consistent
	// LIST about FreshnessTimeout and a second after it began, until Storage is
	// back. A Storage of which nothing was heard for that long is asked for its
	// version, and every two seconds while it does not answer. At least 1 s.
	// 0: 10 s.
	StorageTimeout time.Duration
	// StaleReads is how many consistent LISTs go to Storage when the cache does
	// not become fresh in time, or is known to be wrong: that many at a time,
	// and that many in any FreshnessTimeout. The others are told to retry
	// (429). GETs go to Storage, all of them. At most 10,000. 0: 10; negative: none.
	StaleReads int
	// ConsistentGetFromStorage makes GET without a resourceVersion go to
	// Storage instead of the cache.
	ConsistentGetFromStorage bool
	// WatchBuffer is the number of events that a watcher's channel holds
	// before the watcher counts as slow, 65,536 at most. 0: 16.
	WatchBuffer int
	// EncodingBytes bounds the serializations that are kept to be shared by
	// watchers, and by lists where Lists is set, in bytes. Half of it is for events
	// that happen, the other for initial events and lists; each has what the other
	// leaves of its half. Of a list that is larger, a part is kept and the rest is
	// encoded for every request. Lists that clients accept with gzip are
	// kept compressed as well, and only so where there is no room for both. 0: 32 MiB,
	// or what EncodingPercent says; negative: none are kept.
	EncodingBytes int64
	// EncodingPercent lets serializations take more than EncodingBytes in a cache of
	// many objects: so many percent of the memory of the objects (Status.ObjectBytes),
	// but no more than 1 GiB. At most 100. 0: 15 if EncodingBytes is 0, otherwise
	// none; negative: none, so that EncodingBytes alone bounds.
	EncodingPercent int
	// ParkedTimeout is for how long a slow watcher may stay parked before its
	// watch is ended; a new one as well, from the last initial event that it
	// took. 0: for as long as the window reaches back to it.
	ParkedTimeout time.Duration
	// InitialEventsTimeout is for how long a watcher may take none of the initial
	// events that it is being sent, before its watch is ended (410). Until then
	// the state of when the watch began stays in memory. 0: 60 s; negative: for as
	// long as the window reaches back to it.
	InitialEventsTimeout time.Duration
	// InitialEventsBytes bounds what watchers that are being sent their initial
	// events keep in memory beyond the current state, in bytes, estimated. Up to
	// it, events stay in the window for new watchers that come further,
	// whatever EventsHistoryWindow and WindowBytes say, so that a client that is
	// only slow gets through. Above it, those that keep the most are ended (410).
	// 0: WindowBytes.
	InitialEventsBytes int64
	// CarryWatchersOverRelist keeps watches open when the cache has to list
	// Storage again: watchers are told the difference between the two states.
	// Events are coalesced: of several changes of an object meanwhile watchers see
	// the last one, of a deletion and a creation a modification to another UID,
	// and of an object that came and went nothing. Without this option such a
	// watch ends, and its client lists and watches again. After a doubt about the
	// state (see ConsistencyCheckInterval) watches end all the same, except those
	// that have begun with their initial state. Versions are taken to mean what they
	// meant before: not so if the storage was restored from a backup and has given
	// some out again. Then an object that is listed with the version that it has in
	// the cache counts as the same, and a client that resumes from before the list is
	// told what was written before the backup was restored, and then the difference.
	CarryWatchersOverRelist bool
	// ConsistencyCheckInterval is the time between two comparisons of the
	// cache with Storage, which reads all keys there; up to half as long
	// again at random. If they differ, the cache lists Storage again, and until
	// then consistent reads and those of exact resourceVersions go to Storage;
	// see StaleReads. At least 1 s. 0: 5 min; negative: none are made.
	ConsistencyCheckInterval time.Duration
	// LazyStart makes the first request that needs the cache start it: a GET,
	// LIST or WATCH, or Wait. Until then it costs its configuration: no
	// goroutine, no state, no watch of Storage. GETs, and LISTs with a limit and
	// no selector, are served from Storage while the state is read; the others
	// wait for it, up to FreshnessTimeout.
	LazyStart bool
	// IdleTimeout puts the cache to sleep when it was not used for that long; up
	// to twice as long. Asleep it is as before a lazy start, and wakes as then.
	// An open watch is a use, a write is not. A client that resumes from before
	// the sleep is told to list (410). At least 1 s. 0: it stays awake.
	IdleTimeout time.Duration
	// DisableSizeEstimation leaves Storage's size estimator off. With it on,
	// Storage is told the cache's keys, so that Stats knows the average size
	// of objects.
	DisableSizeEstimation bool
	// Lists lets the encoders of a server share the serializations of lists. nil:
	// each list is encoded for itself.
	Lists *Lists
	// ShareEqualParts makes objects share the memory of what is equal in them: a
	// new state with the one before it, and listed or new objects with a neighbour,
	// as Pods of one template are. Clients see no difference. Sharing takes CPU time
	// whenever an object comes, a twentieth to a half of decoding it. Storage must not keep
	// or show to others the objects that its watches and lists bring, for their
	// references are written to; that of k8s.io/apiserver decodes them for the cache
	// alone. WindowBytes still counts each object as if it had memory of its own.
	ShareEqualParts bool
	// Metrics is where the cache counts. nil: nowhere.
	Metrics *metrics.Metrics
	// DisableShippedMetrics leaves the metrics of the cacher that k8s.io/apiserver
	// ships alone. Otherwise the cache writes them beside its own as far as it can,
	// whatever Metrics is, for dashboards that were made for that cacher;
	// COMPATIBILITY.md lists them.
	DisableShippedMetrics bool
}

// withDefaults returns the configuration with every zero that has a default
// replaced by it.
func (c Config) withDefaults() Config {
	setDefault(&c.EventsHistoryWindow, DefaultEventsHistoryWindow)
	setDefault(&c.WindowBytes, DefaultWindowBytes)
	setDefault(&c.DispatchBudget, DefaultDispatchBudget)
	setDefault(&c.BookmarkInterval, DefaultBookmarkInterval)
	setDefault(&c.FreshnessTimeout, DefaultFreshnessTimeout)
	setDefault(&c.StorageTimeout, DefaultStorageTimeout)
	setDefault(&c.StaleReads, DefaultStaleReads)
	setDefault(&c.WatchBuffer, DefaultWatchBuffer)
	if c.EncodingBytes == 0 {
		setDefault(&c.EncodingPercent, DefaultEncodingPercent)
	}
	setDefault(&c.EncodingBytes, DefaultEncodingBytes)
	setDefault(&c.InitialEventsTimeout, DefaultInitialEventsTimeout)
	setDefault(&c.InitialEventsBytes, min(max(0, c.WindowBytes), maxBytes))
	setDefault(&c.ConsistencyCheckInterval, DefaultConsistencyCheckInterval)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.ResourcePrefix != "" && !strings.HasSuffix(c.ResourcePrefix, "/") {
		c.ResourcePrefix += "/"
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
