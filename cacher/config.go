// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"path"
	"reflect"
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
	// DefaultEventsHistoryWindow is one DefaultBookmarkInterval and a bit, so
	// that a client that resumes from its last bookmark finds it covered.
	DefaultEventsHistoryWindow = 75 * time.Second
	DefaultWindowBytes         = 128 << 20
	DefaultDispatchBudget      = 5 * time.Millisecond
	DefaultBookmarkInterval    = time.Minute
	DefaultFreshnessTimeout    = 3 * time.Second
	DefaultStaleReads          = 10
	DefaultWatchBuffer         = 16
	DefaultEncodingBytes       = 32 << 20

	// DefaultConsistencyCheckInterval is etcd's usual compaction interval.
	DefaultConsistencyCheckInterval = 5 * time.Minute
)

// Config says what a Cacher caches and how. The fields down to Clock are those
// of k8s.io/apiserver's cacher.Config with the same meaning; those after it
// have zero values that work.
type Config struct {
	// Storage is what is wrapped: where writes go and changes come from. Its
	// watches must tell the truth in their event types (ADDED for a key that
	// was not there, and so on): the cache takes a contradiction for missed
	// events and lists anew. It must not have another size estimator enabled.
	//
	// It may have two more methods. WatchProgress() bool tells whether it
	// answers RequestWatchProgress reliably, now; see WatchProgress below.
	// Versions(ctx, prefix, rv, visit), see ConsistencyCheckInterval, calls
	// visit for each key as of exactly rv, in order, with the resourceVersion
	// of its last write; without it the objects are listed.
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
	// Codec is what Storage stores objects with. It is only checked to fit.
	Codec runtime.Codec
	// Clock is what time is taken from. nil: the real one.
	Clock clock.WithTicker

	// LabelIndexes are label keys to keep an index for, for reads whose label
	// selector requires certain values of the label.
	LabelIndexes []string
	// WatchProgress tells whether Storage answers RequestWatchProgress
	// reliably at this time; consistent reads and streamed lists are served
	// from the cache only then. nil: Storage is asked if it has a method
	// WatchProgress() bool, else the process-wide etcd feature checker.
	WatchProgress func() bool
	// WindowBytes bounds the memory that the window of events takes beyond
	// the current state, in bytes. 0: 128 MiB.
	WindowBytes int64
	// DispatchBudget is for how long, in every second, dispatch may wait for
	// watchers with full channels in all before it parks them. 0: 5 ms;
	// negative: it never waits.
	DispatchBudget time.Duration
	// BookmarkInterval is the time between two bookmarks of a watcher that
	// asked for bookmarks. 0: 60 s.
	BookmarkInterval time.Duration
	// FreshnessTimeout is how long a read waits for the cache to reach the
	// resourceVersion it needs. 0: 3 s.
	FreshnessTimeout time.Duration
	// StaleReads is how many consistent reads go to Storage when the cache
	// does not become fresh in time: that many at a time, and that many in
	// any FreshnessTimeout. The others are told to retry (429). 0: 10;
	// negative: none.
	StaleReads int
	// ConsistentGetFromStorage makes GET without a resourceVersion go to
	// Storage instead of the cache.
	ConsistentGetFromStorage bool
	// WatchBuffer is the number of events that a watcher's channel holds
	// before the watcher counts as slow. 0: 16.
	WatchBuffer int
	// EncodingBytes bounds the serializations that are kept to be shared by
	// watchers, in bytes. 0: 32 MiB; negative: none are kept.
	EncodingBytes int64
	// ParkedTimeout is for how long a slow watcher may stay parked before its
	// watch is ended. 0: for as long as the window reaches back to it.
	ParkedTimeout time.Duration
	// CarryWatchersOverRelist keeps watches open when the cache has to list
	// Storage anew: watchers are told the difference between the two states.
	// That coalesces: of several changes of an object meanwhile they see the
	// last one, of a deletion and a creation a modification to another UID,
	// and of an object that came and went nothing. Without it such a watch
	// ends, and its client lists and watches again.
	CarryWatchersOverRelist bool
	// ConsistencyCheckInterval is the time between two comparisons of the
	// cache with Storage, which reads all keys there; up to half as long
	// again at random. If they differ, LISTs at exact resourceVersions go to
	// Storage until a comparison finds that they agree. 0: 5 min; negative:
	// none are made.
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
	// the sleep is told to list (410). 0: it stays awake.
	IdleTimeout time.Duration
	// DisableSizeEstimation leaves Storage's size estimator off. With it on,
	// Storage is told the cache's keys, so that Stats knows the average size
	// of objects.
	DisableSizeEstimation bool
	// Metrics is where the cache counts. nil: nowhere.
	Metrics *metrics.Metrics
}

// withDefaults returns the configuration with every zero that has a default
// replaced by it.
func (c Config) withDefaults() Config {
	setDefault(&c.EventsHistoryWindow, DefaultEventsHistoryWindow)
	setDefault(&c.WindowBytes, DefaultWindowBytes)
	setDefault(&c.DispatchBudget, DefaultDispatchBudget)
	setDefault(&c.BookmarkInterval, DefaultBookmarkInterval)
	setDefault(&c.FreshnessTimeout, DefaultFreshnessTimeout)
	setDefault(&c.StaleReads, DefaultStaleReads)
	setDefault(&c.WatchBuffer, DefaultWatchBuffer)
	setDefault(&c.EncodingBytes, DefaultEncodingBytes)
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

// Validate names every field that does not fit, and its value.
func (c Config) Validate() error {
	var errs []error
	wrong := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("cacher.Config.%s is %v: %s", field, value, want))
	}
	required := func(field string, missing bool) {
		if missing {
			wrong(field, "nil", "it is required")
		}
	}
	required("Storage", c.Storage == nil)
	required("Versioner", c.Versioner == nil)
	required("KeyFunc", c.KeyFunc == nil)
	required("GetAttrsFunc", c.GetAttrsFunc == nil)
	required("NewFunc", c.NewFunc == nil)
	required("NewListFunc", c.NewListFunc == nil)
	required("Codec", c.Codec == nil)
	if c.GroupResource.Resource == "" {
		wrong("GroupResource", fmt.Sprintf("%q", c.GroupResource), "the resource is empty")
	}
	if p, clean := c.ResourcePrefix, path.Clean(c.ResourcePrefix); clean[0] != '/' || clean == "/" || (p != clean && p != clean+"/") {
		wrong("ResourcePrefix", fmt.Sprintf("%q", c.ResourcePrefix), `want "/" and a name, for example "/devices/"`)
	}
	for field, value := range map[string]time.Duration{
		"EventsHistoryWindow": c.EventsHistoryWindow,
		"BookmarkInterval":    c.BookmarkInterval,
		"FreshnessTimeout":    c.FreshnessTimeout,
		"ParkedTimeout":       c.ParkedTimeout,
		"IdleTimeout":         c.IdleTimeout,
	} {
		if value < 0 {
			wrong(field, value, "it is negative")
		}
	}
	if c.WindowBytes < 0 {
		wrong("WindowBytes", c.WindowBytes, "it is negative")
	}
	if c.WatchBuffer < 0 {
		wrong("WatchBuffer", c.WatchBuffer, "it is negative")
	}
	errs = append(errs, c.validateIndexes(wrong)...)
	errs = append(errs, c.validateTypes(wrong)...)
	return errors.Join(errs...)
}

func (c Config) validateIndexes(wrong func(field string, value any, want string)) (errs []error) {
	names := map[string]bool{}
	for name, f := range c.IndexerFuncs {
		if f == nil {
			wrong("IndexerFuncs", fmt.Sprintf("%q: nil", name), "the function is required")
		}
	}
	if c.Indexers != nil {
		for name, f := range *c.Indexers {
			names[name] = true
			if f == nil {
				wrong("Indexers", fmt.Sprintf("%q: nil", name), "the function is required")
			}
		}
	}
	for _, label := range c.LabelIndexes {
		if msgs := validation.IsQualifiedName(label); len(msgs) > 0 {
			wrong("LabelIndexes", fmt.Sprintf("%q", label), strings.Join(msgs, "; "))
		}
		if name := storage.LabelIndex(label); names[name] {
			wrong("LabelIndexes", fmt.Sprintf("%q", label), "there is an index of this name already")
		} else {
			names[name] = true
		}
	}
	return errs
}

// validateTypes makes one object and one list, and looks whether they fit.
func (c Config) validateTypes(wrong func(field string, value any, want string)) (errs []error) {
	if c.NewFunc != nil {
		object := c.NewFunc()
		if v := reflect.ValueOf(object); v.Kind() != reflect.Pointer || v.IsNil() {
			wrong("NewFunc", fmt.Sprintf("a function that returns the %T %v", object, object), "want a pointer to an empty object")
			return errs
		}
		if c.Codec != nil {
			if err := runtime.CheckCodec(c.Codec, object); err != nil {
				errs = append(errs, fmt.Errorf("cacher.Config.Codec is %T: it does not encode and decode %T: %w", c.Codec, object, err))
			}
		}
	}
	if c.NewListFunc != nil {
		list := c.NewListFunc()
		if list == nil {
			wrong("NewListFunc", "a function that returns nil", "want an empty list")
			return errs
		}
		items, err := itemsOf(list)
		if err != nil {
			wrong("NewListFunc", fmt.Sprintf("a function that returns %T", list), err.Error())
			return errs
		}
		if c.NewFunc == nil {
			return errs
		}
		if item, object := items.Type().Elem(), reflect.TypeOf(c.NewFunc()).Elem(); item != object {
			wrong("NewListFunc", fmt.Sprintf("a function that returns %T", list), fmt.Sprintf("its items are of type %v, NewFunc makes %v", item, object))
		}
	}
	return errs
}
