// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Options are the settings of caches that depend on where a server runs and not
// on its code, so that the operator of a server may change them by flags.
// Each field but LabelIndexes is the field of Config with the same name, for all
// caches of a server. docs/flags.md says why the other fields have no flag.
//
// A server has one Options: made by NewOptions, perhaps with other defaults,
// then AddFlags, Validate when the flags are parsed, and WithOptions among the
// options of server.Install or Decorator.
type Options struct {
	// EventsHistoryWindow: 0 leaves the server's storagebackend.Config in charge.
	EventsHistoryWindow time.Duration
	// WindowBytes must be positive.
	WindowBytes int64
	// EncodingBytes: 0 keeps no serializations.
	EncodingBytes int64
	// EncodingPercent: 0 lets EncodingBytes alone bound them.
	EncodingPercent int
	// InitialEventsBytes: 0 is WindowBytes.
	InitialEventsBytes int64
	// InitialEventsTimeout: 0 is for as long as the window reaches back.
	InitialEventsTimeout time.Duration
	// ParkedTimeout: 0 is for as long as the window reaches back.
	ParkedTimeout time.Duration
	// FreshnessTimeout must be positive.
	FreshnessTimeout time.Duration
	// StorageTimeout must be positive.
	StorageTimeout time.Duration
	// StaleReads: 0 lets none through.
	StaleReads int
	// ConsistencyCheckInterval: 0 makes no checks.
	ConsistencyCheckInterval time.Duration
	// ConsistentGetFromStorage is the way back to GETs from etcd.
	ConsistentGetFromStorage bool
	// LazyStart starts caches with their first request.
	LazyStart bool
	// IdleTimeout: 0 lets no cache sleep.
	IdleTimeout time.Duration
	// ShareEqualParts makes objects share the memory of what is equal in them.
	ShareEqualParts bool
	// DisableShippedMetrics leaves out the metrics of the cacher that
	// k8s.io/apiserver ships.
	DisableShippedMetrics bool
	// LabelIndexes are the label keys to keep an index for, by resource. They take
	// the place of those that WithLabelIndexes gives to all resources.
	LabelIndexes map[schema.GroupResource][]string
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		WindowBytes: DefaultWindowBytes, EncodingBytes: DefaultEncodingBytes, EncodingPercent: DefaultEncodingPercent,
		InitialEventsTimeout: DefaultInitialEventsTimeout, FreshnessTimeout: DefaultFreshnessTimeout,
		StorageTimeout: DefaultStorageTimeout, StaleReads: DefaultStaleReads,
		ConsistencyCheckInterval: DefaultConsistencyCheckInterval,
	}
}

// labelIndexesFlag is the flag of LabelIndexes, the others are in flagFields.
const labelIndexesFlag = "watch-cache-label-indexes"

// zeroMeans is what the zero of a field of Options means for the field of Config,
// whose own zero is a default.
type zeroMeans int

const (
	zeroIsUnset   zeroMeans = iota // the field of Config is left alone
	zeroIsNone                     // Config has -1 for it
	zeroIsRefused                  // there must be a value
)

// flagFields are the fields of Options with the name and type of one of Config, in
// the order of their flags.
var flagFields = []struct {
	name, flag string
	zero       zeroMeans
}{
	{"EventsHistoryWindow", "watch-cache-window", zeroIsUnset},
	{"WindowBytes", "watch-cache-window-bytes", zeroIsRefused},
	{"EncodingBytes", "watch-cache-encoding-bytes", zeroIsNone},
	{"EncodingPercent", "watch-cache-encoding-percent", zeroIsNone},
	{"InitialEventsBytes", "watch-cache-initial-events-bytes", zeroIsUnset},
	{"InitialEventsTimeout", "watch-cache-initial-events-timeout", zeroIsNone},
	{"ParkedTimeout", "watch-cache-parked-timeout", zeroIsUnset},
	{"FreshnessTimeout", "watch-cache-freshness-timeout", zeroIsRefused},
	{"StorageTimeout", "watch-cache-storage-timeout", zeroIsRefused},
	{"StaleReads", "watch-cache-stale-reads", zeroIsNone},
	{"ConsistencyCheckInterval", "watch-cache-consistency-check-interval", zeroIsNone},
	{"ConsistentGetFromStorage", "watch-cache-consistent-get-from-storage", zeroIsUnset},
	{"LazyStart", "watch-cache-lazy-start", zeroIsUnset},
	{"IdleTimeout", "watch-cache-idle-timeout", zeroIsUnset},
	{"ShareEqualParts", "watch-cache-share-equal-parts", zeroIsUnset},
	{"DisableShippedMetrics", "watch-cache-disable-shipped-metrics", zeroIsUnset},
}

// AddFlags adds a flag for each field. The field's value is the flag's default.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.EventsHistoryWindow, "watch-cache-window", o.EventsHistoryWindow, "For how long a watch cache keeps events for "+
		"watches that resume, as far as --watch-cache-window-bytes allows. 0: as the server's code says, usually 75s.")
	fs.Var((*byteSize)(&o.WindowBytes), "watch-cache-window-bytes", "How much memory the events of one watch cache take beyond "+
		"the current state, in bytes; 128Mi, say. Events go when they need more, whatever --watch-cache-window says.")
	fs.Var((*byteSize)(&o.EncodingBytes), "watch-cache-encoding-bytes", "How much memory one watch cache takes for serializations "+
		"that watches share, and lists where the server keeps those, in bytes. 0: none are kept.")
	fs.IntVar(&o.EncodingPercent, "watch-cache-encoding-percent", o.EncodingPercent, "How much more than --watch-cache-encoding-bytes "+
		"one watch cache of many objects takes for serializations: so many percent of the memory of its objects, 1Gi at most. 0: no more.")
	fs.Var((*byteSize)(&o.InitialEventsBytes), "watch-cache-initial-events-bytes", "How much memory watches that are being sent their "+
		"initial events keep in one watch cache, in bytes. Above it those that keep the most are ended with 410. "+
		"0: as much as --watch-cache-window-bytes.")
	fs.DurationVar(&o.InitialEventsTimeout, "watch-cache-initial-events-timeout", o.InitialEventsTimeout, "For how long a watch may take "+
		"none of its initial events before it is ended with 410. 0: as long as the events that follow are kept.")
	fs.DurationVar(&o.ParkedTimeout, "watch-cache-parked-timeout", o.ParkedTimeout, "For how long a watch whose client is too slow "+
		"is kept before it is ended. 0: as long as the events that follow are kept.")
	fs.DurationVar(&o.FreshnessTimeout, "watch-cache-freshness-timeout", o.FreshnessTimeout, "How long a LIST waits for a watch cache to "+
		"be as fresh as the LIST needs; then a few go to etcd (--watch-cache-stale-reads) and the others get 429. "+
		"A GET waits a sixth of it and then goes to etcd.")
	fs.DurationVar(&o.StorageTimeout, "watch-cache-storage-timeout", o.StorageTimeout, "For how long etcd may leave requests unanswered "+
		"before it counts as lost: that is logged, and reads that need it end with 504 until it is back. At least 1s.")
	fs.IntVar(&o.StaleReads, "watch-cache-stale-reads", o.StaleReads, "How many LISTs of a resource go to etcd, at a time and in each "+
		"--watch-cache-freshness-timeout, when its watch cache does not become fresh. 0: none.")
	fs.DurationVar(&o.ConsistencyCheckInterval, "watch-cache-consistency-check-interval", o.ConsistencyCheckInterval, "The time between two "+
		"comparisons of a watch cache with etcd, which read all keys of the resource. At least 1s. 0: none are made.")
	fs.BoolVar(&o.ConsistentGetFromStorage, "watch-cache-consistent-get-from-storage", o.ConsistentGetFromStorage, "Answer GETs without "+
		"a resourceVersion from etcd instead of the watch caches.")
	fs.BoolVar(&o.LazyStart, "watch-cache-lazy-start", o.LazyStart, "Start a watch cache with the first GET, LIST or WATCH of its resource.")
	fs.DurationVar(&o.IdleTimeout, "watch-cache-idle-timeout", o.IdleTimeout, "End a watch cache that was not used for that long, until the "+
		"next GET, LIST or WATCH. At least 1s. 0: never.")
	fs.BoolVar(&o.ShareEqualParts, "watch-cache-share-equal-parts", o.ShareEqualParts, "Keep equal parts of the objects of a watch cache in "+
		"memory once. Takes less memory, and more time for each object that comes.")
	fs.BoolVar(&o.DisableShippedMetrics, "watch-cache-disable-shipped-metrics", o.DisableShippedMetrics, "Leave out the metrics that "+
		"dashboards for the cache of k8s.io/apiserver use, apiserver_watch_cache_* and others, beside watchcache_*.")
	fs.Var(&labelIndexes{to: &o.LabelIndexes}, labelIndexesFlag, "Labels to keep an index for, for LISTs and watches that select by them: "+
		"a comma-separated list of RESOURCE[.GROUP]#LABEL, as devices.fleet.example.com#site. The flag may be repeated.")
}

// Validate returns an error for each field that does not fit, with its flag and
// its value; nil if there is none.
func (o *Options) Validate() (wrong []error) {
	for _, field := range flagFields {
		value := reflect.ValueOf(*o).FieldByName(field.name)
		want := ""
		switch {
		case value.CanInt() && value.Int() < 0:
			want = wantNotNegative
		case value.IsZero() && field.zero == zeroIsRefused:
			want = "it must be positive"
		default:
			want = o.refuses(field.name)
		}
		if want != "" {
			wrong = append(wrong, fmt.Errorf("--%s is %v: %s", field.flag, value, want))
		}
	}
	for _, resource := range o.indexed() {
		if resource.Resource == "" {
			wrong = append(wrong, fmt.Errorf("--%s names %q: the resource is empty", labelIndexesFlag, resource))
		}
		var found problems
		Config{LabelIndexes: o.LabelIndexes[resource]}.validateTuning(&found)
		for _, problem := range found {
			if field, ok := errors.AsType[fieldError](problem); ok {
				wrong = append(wrong, fmt.Errorf("--%s names %s for %s: %s", labelIndexesFlag, field.value, resource, field.want))
			}
		}
	}
	return wrong
}

// refuses returns what Config wants instead of a field's value, "" if the value
// fits.
func (o *Options) refuses(name string) string {
	var config Config
	for _, s := range o.settings() {
		s.set(&config)
	}
	var found problems
	config.validateTuning(&found)
	for _, problem := range found {
		if field, ok := errors.AsType[fieldError](problem); ok && field.name == name {
			return field.want
		}
	}
	return ""
}

// settings returns what the fields but LabelIndexes set.
func (o *Options) settings() (settings []setting) {
	for _, field := range flagFields {
		value := reflect.ValueOf(*o).FieldByName(field.name)
		switch {
		case value.IsZero() && field.zero == zeroIsUnset:
			continue
		case value.IsZero() && field.zero == zeroIsNone:
			none := reflect.New(value.Type()).Elem()
			none.SetInt(-1)
			value = none
		}
		settings = append(settings, setting{"WithOptions", field.name, func(c *Config) {
			reflect.ValueOf(c).Elem().FieldByName(field.name).Set(value)
		}})
	}
	return settings
}

// WithOptions sets the fields of Config that have a flag, all of them but those
// that are zero and have no meaning then. They are read when Decorator or
// server.Install is called, which refuses what Validate finds. Another option
// for one of these fields is refused as well: change the Options instead, before
// AddFlags to change the default of a flag.
func WithOptions(o *Options) Option {
	return func(all *options) {
		switch {
		case o == nil:
			all.problems.option("WithOptions", "is given nil: leave it out")
			return
		case all.flags != nil:
			all.problems.option("WithOptions", "is given twice: want one of them")
			return
		}
		all.flags = o
		if wrong := o.Validate(); len(wrong) > 0 {
			all.problems.option("WithOptions", "is given what does not fit: %w", errors.Join(wrong...))
			return
		}
		all.settings = append(all.settings, o.settings()...)
		for _, resource := range o.indexed() {
			labels := slices.Clone(o.LabelIndexes[resource])
			set := setting{"WithOptions", "LabelIndexes", func(c *Config) { c.LabelIndexes = labels }}
			all.resources = append(all.resources, resourceSettings{resource, []setting{set}})
		}
	}
}

// indexed returns the resources that have label indexes, in order.
func (o *Options) indexed() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(o.LabelIndexes), func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
}
