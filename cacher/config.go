// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/metrics"
)

// The defaults of Config's optional fields.
const (
	// DefaultEventsHistoryWindow lets a client resume from its last bookmark.
	DefaultEventsHistoryWindow = 75 * time.Second
	DefaultWindowBytes         = 128 << 20
	DefaultDispatchBudget      = 5 * time.Millisecond
	DefaultBookmarkInterval    = time.Minute
	DefaultFreshnessTimeout    = 3 * time.Second
	DefaultStorageTimeout      = 10 * time.Second
	DefaultMaxFallbackLists    = 10
	DefaultWatchBuffer         = 16
	DefaultEncodingBytes       = 32 << 20
	DefaultAdaptiveIndexes     = 8
	DefaultAdaptivePercent     = 2

	// DefaultEventFreshDuration is the name used by k8s.io/apiserver's package cacher.
	DefaultEventFreshDuration = DefaultEventsHistoryWindow

	// DefaultConsistencyCheckInterval is etcd's usual compaction interval.
	DefaultConsistencyCheckInterval = 5 * time.Minute

	// initialEventsTimeout exceeds the timeouts of clients that intend to continue.
	initialEventsTimeout = time.Minute
)

// Config configures a Cacher. The fields up to Clock are those of k8s.io/apiserver's cacher.Config;
// the later ones are optional. Durations are at most 8760 h, timeouts at least 1 ms, and sizes at
// most 1 TiB.
type Config struct {
	// Storage is the wrapped storage; see package storage/capability for optional methods. Its
	// watches must send correct event types (e.g. ADDED only for a new key): the cache treats a
	// contradiction as missed events and relists. Storage must not have another size estimator.
	Storage storage.Interface
	// Versioner reads and sets resourceVersions.
	Versioner storage.Versioner
	// GroupResource names the resource in logs, metrics and errors.
	GroupResource schema.GroupResource
	// EventsHistoryWindow is the minimum age of events kept for resuming watches, subject to
	// WindowBytes. 0: 75 s.
	EventsHistoryWindow time.Duration
	// ResourcePrefix is the key prefix of the resource's objects, "/devices" or "/devices/".
	ResourcePrefix string
	// KeyFunc returns an object's storage key, including ResourcePrefix. Objects with other keys
	// are not served, but reported in Status.
	KeyFunc func(runtime.Object) (string, error)
	// GetAttrsFunc returns an object's labels and selectable fields, which must not be modified
	// later.
	GetAttrsFunc func(runtime.Object) (labels.Set, fields.Set, error)
	// IndexerFuncs are trigger functions by field name. They index watchers that select one value
	// of the field.
	IndexerFuncs storage.IndexerFuncs
	// Indexers index objects for reads that select storage.FieldIndex(field) or
	// storage.LabelIndex(label), the name of the index.
	Indexers *cache.Indexers
	// NewFunc returns an empty object, NewListFunc an empty list.
	NewFunc     func() runtime.Object
	NewListFunc func() runtime.Object
	// Codec is the codec of Storage, nil if it has none. It must fit the objects.
	Codec runtime.Codec
	// Clock is the source of time, nil for the real clock.
	Clock clock.WithTicker

	// LabelIndexes are label keys to index.
	LabelIndexes []string
	// AdaptiveIndexes is the number of indexes that the cache may build itself, for labels and
	// fields that LISTs often select by value, and drop if they cost more than they save. 0: 8;
	// negative: none.
	AdaptiveIndexes int
	// AdaptivePercent is the total memory limit of adaptive indexes, in percent of the memory of
	// the objects (Status.ObjectBytes). 0: 2.
	AdaptivePercent int
	// WatchProgress reports whether Storage currently answers RequestWatchProgress reliably;
	// consistent reads and streamed lists need it. If nil, a capability.ProgressReporter decides
	// itself, k8s.io/apiserver's etcd storage uses the process-wide checker of etcd's features, and
	// any other storage is unreliable.
	WatchProgress func() bool
	// WindowBytes is the memory limit, in bytes, of the events in the window: decoded objects
	// beyond the current state, overestimated. Undispatched events may take twice as much, or 16
	// MiB if that is more; watchers that miss events get a 410. It also limits the snapshots held
	// for initial events: above it, the watches with the largest ones get a 410. 0: 128 MiB.
	WindowBytes int64
	// DispatchBudget is the total time per second the dispatcher may wait for slow watchers before
	// parking them. At most 1 s. 0: 5 ms; negative: none.
	DispatchBudget time.Duration
	// BookmarkInterval is the time between a watcher's bookmarks, if it requested them. 0: 60 s.
	BookmarkInterval time.Duration
	// FreshnessTimeout limits how long a read waits for the resourceVersion it needs. A GET waits a
	// sixth of it and then goes to Storage. A consistent LIST waits up to five times as long while
	// the cache advances. 0: 3 s.
	FreshnessTimeout time.Duration
	// StorageTimeout is the time without answers after which the cache logs that Storage is lost.
	// Until Storage is back, reads that go to it end with 504. At least 1 s. 0: 10 s.
	StorageTimeout time.Duration
	// MaxFallbackLists limits the consistent LISTs that go to Storage because the cache is
	// unverified or not fresh in time, both concurrently and per FreshnessTimeout. Others get a 429
	// with Retry-After. GETs have no limit. At most 10,000. 0: 10; negative: none.
	MaxFallbackLists int
	// ConsistentGetFromStorage sends GETs without a resourceVersion to Storage.
	ConsistentGetFromStorage bool
	// WatchBuffer is the capacity of a watcher's channel, in events. A watcher with a full channel
	// is slow. At most 65,536. 0: 16.
	WatchBuffer int
	// EncodingBytes is the memory limit, in bytes, of serializations shared by watchers and, with
	// Lists, lists. Live events get half, initial events and lists the other half; each may borrow
	// unused memory of the other, and returns it within a second. 0: 32 MiB, or 15 % of the memory
	// of the objects (Status.ObjectBytes) up to 1 GiB, whichever is more; negative: none.
	EncodingBytes int64
	// ConsistencyCheckInterval is the time between comparisons of the cache with all keys of
	// Storage, plus up to 50 % at random. After a difference the cache relists; until then
	// consistent reads and those of exact resourceVersions go to Storage. At least 1 s. 0: 5 min;
	// negative: none.
	ConsistencyCheckInterval time.Duration
	// LazyStart delays the start until the first GET, LIST, WATCH or Wait. Until then the cache has
	// no goroutine, state or watch. While it loads, Storage answers GETs and LISTs with a limit and
	// no selector; other requests wait up to FreshnessTimeout.
	LazyStart bool
	// IdleTimeout is the time without use after which the cache sleeps, as before a lazy start. It
	// may take twice as long. An open watch is a use, a write is not. Clients that resume from
	// before the sleep get a 410. At least 1 s. 0: never.
	IdleTimeout time.Duration
	// DisableSizeEstimation disables Storage's estimator of object sizes, which serves Stats and
	// reads the cache's keys.
	DisableSizeEstimation bool
	// Lists shares serializations of lists and initial events between requests. server.Install sets
	// it. nil: nothing is shared.
	Lists Encoder
	// Metrics are the counters of the cache, nil for none.
	Metrics *metrics.Metrics

	// encodingFollows is true if EncodingBytes depends on the memory of the objects.
	encodingFollows bool
	// shadowFraction is the fraction of requests compared against another storage, which then
	// serves (InShadow). 0: the cache serves.
	shadowFraction float64
	// encrypts is true if a cached value may become unreadable in storage.
	encrypts bool
	// initialTimeout and initialBytes differ from initialEventsTimeout and WindowBytes in tests
	// only.
	initialTimeout time.Duration
	initialBytes   int64
}

func (c Config) withDefaults() Config {
	c.EventsHistoryWindow = cmp.Or(c.EventsHistoryWindow, DefaultEventsHistoryWindow)
	c.encodingFollows = c.encodingFollows || c.EncodingBytes == 0
	c.WindowBytes = cmp.Or(c.WindowBytes, DefaultWindowBytes)
	c.EncodingBytes = cmp.Or(c.EncodingBytes, DefaultEncodingBytes)
	c.FreshnessTimeout = cmp.Or(c.FreshnessTimeout, DefaultFreshnessTimeout)
	c.StorageTimeout = cmp.Or(c.StorageTimeout, DefaultStorageTimeout)
	c.MaxFallbackLists = cmp.Or(c.MaxFallbackLists, DefaultMaxFallbackLists)
	c.ConsistencyCheckInterval = cmp.Or(c.ConsistencyCheckInterval, DefaultConsistencyCheckInterval)
	c.AdaptiveIndexes = cmp.Or(c.AdaptiveIndexes, DefaultAdaptiveIndexes)
	c.AdaptivePercent = cmp.Or(c.AdaptivePercent, DefaultAdaptivePercent)
	c.DispatchBudget = cmp.Or(c.DispatchBudget, DefaultDispatchBudget)
	c.BookmarkInterval = cmp.Or(c.BookmarkInterval, DefaultBookmarkInterval)
	c.WatchBuffer = cmp.Or(c.WatchBuffer, DefaultWatchBuffer)
	c.initialTimeout = cmp.Or(c.initialTimeout, initialEventsTimeout)
	c.initialBytes = cmp.Or(c.initialBytes, c.WindowBytes)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.ResourcePrefix != "" && !strings.HasSuffix(c.ResourcePrefix, "/") {
		c.ResourcePrefix += "/"
	}
	return c
}

type problems []error

// field adds an error about a field of Config. want describes valid values.
func (p *problems) field(name string, value any, want string) {
	*p = append(*p, fmt.Errorf("cacher.Config.%s is %v: %s", name, value, want))
}

func (p *problems) required(name string, missing bool) {
	if missing {
		p.field(name, "nil", "it is required")
	}
}

func (p *problems) option(name, format string, args ...any) {
	*p = append(*p, fmt.Errorf("cacher.%s "+format, append([]any{name}, args...)...))
}

// Validate returns an error that names every invalid field, or nil.
func (c Config) Validate() error {
	var p problems
	p.required("Storage", c.Storage == nil)
	p.required("Versioner", c.Versioner == nil)
	p.required("KeyFunc", c.KeyFunc == nil)
	p.required("GetAttrsFunc", c.GetAttrsFunc == nil)
	p.required("NewFunc", c.NewFunc == nil)
	p.required("NewListFunc", c.NewListFunc == nil)
	if c.GroupResource.Resource == "" {
		p.field("GroupResource", fmt.Sprintf("%q", c.GroupResource), "the resource is empty")
	}
	if prefix, clean := c.ResourcePrefix, path.Clean(c.ResourcePrefix); clean[0] != '/' || clean == "/" || (prefix != clean && prefix != clean+"/") {
		p.field("ResourcePrefix", fmt.Sprintf("%q", prefix), `want "/" and a name, for example "/devices/"`)
	}
	c.validateTuning(&p)
	c.validateIndexes(&p)
	c.validateTypes(&p)
	return errors.Join(p...)
}

func (c Config) validateTuning(p *problems) {
	checkRange(p, "EventsHistoryWindow", c.EventsHistoryWindow, 0, maxDuration, false)
	checkRange(p, "WindowBytes", c.WindowBytes, 0, maxBytes, false)
	checkRange(p, "EncodingBytes", c.EncodingBytes, 0, maxBytes, true)
	checkRange(p, "FreshnessTimeout", c.FreshnessTimeout, time.Millisecond, maxDuration, false)
	checkRange(p, "StorageTimeout", c.StorageTimeout, time.Second, maxDuration, false)
	checkRange(p, "MaxFallbackLists", c.MaxFallbackLists, 0, 10_000, true)
	checkRange(p, "ConsistencyCheckInterval", c.ConsistencyCheckInterval, time.Second, maxDuration, true)
	checkRange(p, "IdleTimeout", c.IdleTimeout, time.Second, maxDuration, false)
	checkRange(p, "AdaptiveIndexes", c.AdaptiveIndexes, 0, 100, true)
	checkRange(p, "AdaptivePercent", c.AdaptivePercent, 0, 100, false)
	checkRange(p, "DispatchBudget", c.DispatchBudget, 0, time.Second, true)
	checkRange(p, "BookmarkInterval", c.BookmarkInterval, time.Millisecond, maxDuration, false)
	checkRange(p, "WatchBuffer", c.WatchBuffer, 0, 1<<16, false)
	seen := map[string]bool{}
	for _, label := range c.LabelIndexes {
		if msgs := validation.IsQualifiedName(label); len(msgs) > 0 {
			p.field("LabelIndexes", fmt.Sprintf("%q", label), strings.Join(msgs, "; "))
		}
		if seen[label] {
			p.field("LabelIndexes", fmt.Sprintf("%q", label), "duplicate label")
		}
		seen[label] = true
	}
}

const (
	// maxDuration and maxBytes exceed every useful value. Sums and multiples of them don't
	// overflow.
	maxDuration = 365 * 24 * time.Hour
	maxBytes    = 1 << 40
)

// checkRange adds an error if value is out of range. If negative is true, negative values mean no
// bound. A positive duration below least probably lacks a unit.
func checkRange[T int | int64 | time.Duration](p *problems, name string, value, least, most T, negative bool) {
	switch {
	case value < 0 && !negative:
		p.field(name, value, "it must not be negative")
	case value > 0 && value < least:
		p.field(name, value, fmt.Sprintf("it must be at least %v", least))
	case value > most:
		p.field(name, value, fmt.Sprintf("it must be at most %v", most))
	}
}

func (c Config) validateIndexes(p *problems) {
	for _, name := range slices.Sorted(maps.Keys(c.IndexerFuncs)) {
		if name == "" {
			p.field("IndexerFuncs", `""`, "want the name of a field")
		}
		if c.IndexerFuncs[name] == nil {
			p.field("IndexerFuncs", fmt.Sprintf("%q: nil", name), "the function is required")
		}
	}
	var indexers cache.Indexers
	if c.Indexers != nil {
		indexers = *c.Indexers
	}
	for _, name := range slices.Sorted(maps.Keys(indexers)) {
		if !isIndexName(name) {
			p.field("Indexers", fmt.Sprintf("%q", name), fmt.Sprintf("no read would use it: want %q or %q", storage.FieldIndex("FIELD"), storage.LabelIndex("LABEL")))
		}
		if indexers[name] == nil {
			p.field("Indexers", fmt.Sprintf("%q: nil", name), "the function is required")
		}
	}
	for _, label := range c.LabelIndexes {
		if _, taken := indexers[storage.LabelIndex(label)]; taken {
			p.field("LabelIndexes", fmt.Sprintf("%q", label), "Indexers already has an index of this name")
		}
	}
}

func isIndexName(name string) bool {
	field, ofField := strings.CutPrefix(name, storage.FieldIndex(""))
	label, ofLabel := strings.CutPrefix(name, storage.LabelIndex(""))
	return ofField && field != "" || ofLabel && label != ""
}

// validateTypes checks that NewFunc, NewListFunc and Codec fit each other.
func (c Config) validateTypes(p *problems) {
	var objectType reflect.Type
	if c.NewFunc != nil {
		object := c.NewFunc()
		if v := reflect.ValueOf(object); v.Kind() != reflect.Pointer || v.IsNil() {
			p.field("NewFunc", fmt.Sprintf("a function that returns the %T %v", object, object), "want a pointer to an empty object")
			return
		}
		objectType = reflect.TypeOf(object).Elem()
		if c.Codec != nil {
			if err := runtime.CheckCodec(c.Codec, object); err != nil {
				*p = append(*p, fmt.Errorf("cacher.Config.Codec is %T: it does not encode and decode %T: %w", c.Codec, object, err))
			}
		}
	}
	if c.NewListFunc == nil {
		return
	}
	list := c.NewListFunc()
	if list == nil {
		p.field("NewListFunc", "a function that returns nil", "want an empty list")
		return
	}
	items, err := itemsOf(list)
	switch returns := fmt.Sprintf("a function that returns %T", list); {
	case err != nil:
		p.field("NewListFunc", returns, err.Error())
	case objectType != nil && items.Type().Elem() != objectType:
		p.field("NewListFunc", returns, fmt.Sprintf("its items are of type %v, NewFunc makes %v", items.Type().Elem(), objectType))
	}
}
