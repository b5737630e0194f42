// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Options are the settings of a server's caches that depend on where the server runs
// and not on its code, so that its operator can change them by flags.
//
// A server has one Options: made by NewOptions, perhaps with other defaults, then
// AddFlags, Validate when the flags are parsed, and WithOptions among the options of
// server.Install or Decorator.
type Options struct {
	// Config has the values of the flags, for all caches. A field that is set before
	// AddFlags is the default of its flag. Fields without a flag must not be set.
	Config
	// LabelIndexes are labels to keep an index for, each as RESOURCE[.GROUP]#LABEL. They
	// replace the Config.LabelIndexes of the resource.
	LabelIndexes []string
	// Implementation chooses the cache of all resources. It is for server.Install: a
	// Decorator alone has no shipped cacher. "" is ImplementationWatchCache.
	Implementation Implementation
	// Shipped are single resources on the shipped cacher, each as RESOURCE[.GROUP].
	Shipped []string
	// Shadow, if above 0 and up to 1, has all requests answered by the shipped cacher. The
	// caches run in its shadow: this share of GETs, LISTs and WATCHes is asked of them as
	// well, and compared. They neither sleep nor start late.
	Shadow float64
}

// Implementation names a watch cache. It is a pflag.Value.
type Implementation string

const (
	// ImplementationWatchCache is the cache of this module.
	ImplementationWatchCache Implementation = "watchcache"
	// ImplementationShipped is the cacher of k8s.io/apiserver, as the server has it
	// without server.Install.
	ImplementationShipped Implementation = "shipped"
)

// NewOptions returns the defaults.
func NewOptions() *Options { return &Options{} }

// The flags that are not in tunings.
const (
	labelIndexesFlag   = "watch-cache-label-indexes"
	implementationFlag = "watch-cache-implementation"
	shippedFlag        = "watch-cache-shipped"
	shadowFlag         = "watch-cache-shadow"
)

// AddFlags adds the flags. The value that a field has now is the flag's default.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	for i := range tunings {
		t := &tunings[i]
		if t.flag == "" {
			continue
		}
		if b, ok := t.at(&o.Config).(*bool); ok {
			fs.BoolVar(b, t.flag, *b, t.usage)
			continue
		}
		fs.Var(&tuningFlag{t, &o.Config}, t.flag, t.usage)
	}
	fs.StringSliceVar(&o.LabelIndexes, labelIndexesFlag, o.LabelIndexes, "Labels to keep an index for, for LISTs and watches that select by them: "+
		"a comma-separated list of RESOURCE[.GROUP]#LABEL, as devices.fleet.example.com#site. The flag may be repeated.")
	fs.Var(&o.Implementation, implementationFlag, `The watch cache of all resources: "watchcache", or "shipped" to go back to the cacher of k8s.io/apiserver. `+
		"Resources without a watch cache (--watch-cache, --watch-cache-sizes) stay without one.")
	fs.StringSliceVar(&o.Shipped, shippedFlag, o.Shipped, "Resources that go back to the cacher of k8s.io/apiserver: "+
		"a comma-separated list of RESOURCE[.GROUP], as devices.fleet.example.com or pods. The flag may be repeated. "+
		"A resource that the server does not store is logged once the server is ready.")
	fs.Float64Var(&o.Shadow, shadowFlag, o.Shadow, "Let the cacher of k8s.io/apiserver answer all requests, and compare this share of them, from 0 to 1, with the watch cache beside it: "+
		"see the metrics watchcache_shadow_* and /debug/watchcache.")
}

// Validate returns an error for each invalid value. A value that a flag was given is
// refused when the flags are parsed, except names and a share.
func (o *Options) Validate() (wrong []error) {
	var found problems
	o.Config.validateTuning(&found)
	var flagged Config
	o.apply(&flagged)
	if !reflect.DeepEqual(flagged, o.Config) {
		found.option("Options", "sets a field of cacher.Config that has no flag: use cacher.Configure or cacher.ForResource")
	}
	_, wrong = o.indexes()
	found = append(found, wrong...)
	if err := new(Implementation).Set(o.Implementation.String()); err != nil {
		found = append(found, fmt.Errorf("--%s: %w", implementationFlag, err))
	}
	switch {
	case !(o.Shadow >= 0 && o.Shadow <= 1): // or not a number
		found = append(found, fmt.Errorf("--%s is %v: want a share of the requests, from 0 to 1, as 0.01", shadowFlag, o.Shadow))
	case o.Shadow > 0 && o.Implementation == ImplementationShipped:
		found = append(found, fmt.Errorf("--%s is %v, and with --%s=%s there is no cache to compare: want one of them", shadowFlag, o.Shadow, implementationFlag, o.Implementation))
	}
	for _, name := range o.Shipped {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			found = append(found, fmt.Errorf("--%s names %q: want RESOURCE[.GROUP] in lower case and without a subresource, as devices.fleet.example.com or pods", shippedFlag, name))
		}
	}
	return found
}

// String implements pflag.Value.
func (i *Implementation) String() string { return string(cmp.Or(*i, ImplementationWatchCache)) }

// Set implements pflag.Value.
func (i *Implementation) Set(text string) error {
	if text != string(ImplementationWatchCache) && text != string(ImplementationShipped) {
		return fmt.Errorf("%q is not a watch cache: want %q or %q", text, ImplementationWatchCache, ImplementationShipped)
	}
	*i = Implementation(text)
	return nil
}

// Type implements pflag.Value.
func (*Implementation) Type() string { return "watchcache|shipped" }

// apply sets the fields that have a flag.
func (o *Options) apply(config *Config) {
	for _, t := range tunings {
		if t.flag != "" && t.get(&o.Config) != 0 {
			t.set(config, t.get(&o.Config))
		}
	}
}

// indexes returns the settings of the resources that have label indexes.
func (o *Options) indexes() (all []resourceSettings, wrong []error) {
	var resources []schema.GroupResource
	labels := map[schema.GroupResource][]string{}
	for _, entry := range o.LabelIndexes {
		name, label, _ := strings.Cut(entry, "#")
		of := schema.ParseGroupResource(name)
		if of.Resource == "" || label == "" {
			wrong = append(wrong, fmt.Errorf("--%s names %q: want RESOURCE[.GROUP]#LABEL, as devices.fleet.example.com#site", labelIndexesFlag, entry))
			continue
		}
		if labels[of] == nil {
			resources = append(resources, of)
		}
		labels[of] = append(labels[of], label)
	}
	for _, of := range resources {
		var found problems
		Config{LabelIndexes: labels[of]}.validateTuning(&found)
		for _, problem := range found {
			wrong = append(wrong, fmt.Errorf("--%s for %s: %w", labelIndexesFlag, of, problem))
		}
		all = append(all, resourceSettings{of, func(c *Config) { c.LabelIndexes = labels[of] }})
	}
	return all, wrong
}

// WithOptions sets the fields of Config that have a flag. The values are read when
// Decorator or server.Install is called. Configure must not set the same fields: set
// them in Options before AddFlags, which makes them the defaults of the flags.
func WithOptions(o *Options) Option {
	return func(all *options) {
		switch {
		case o == nil:
			all.problems.option("WithOptions", "is given nil: leave it out")
			return
		case all.flagged:
			all.problems.option("WithOptions", "is given twice: want one of them")
			return
		}
		all.flags, all.flagged = *o, true // as they are now
		all.flags.Shipped = slices.Clone(o.Shipped)
		if wrong := o.Validate(); len(wrong) > 0 {
			all.problems.option("WithOptions", "is given what does not fit: %w", errors.Join(wrong...))
		}
	}
}

// tuningFlag is the flag of a field that holds a number. A zero on the command line
// means none, where that is possible, and not the default as in Config.
type tuningFlag struct {
	*tuning
	config *Config
}

// String implements pflag.Value.
func (f *tuningFlag) String() string {
	if f.tuning == nil { // pflag makes one to look at the zero value
		return ""
	}
	if value := max(0, cmp.Or(f.get(f.config), f.fallback)); value != 0 {
		return f.text(value)
	}
	return "0" // which --help leaves out
}

// Set implements pflag.Value.
func (f *tuningFlag) Set(text string) error {
	value, err := f.parse(text)
	if err != nil {
		return err
	}
	switch want := f.refuses(value); {
	case value < 0:
		return errors.New("it must not be negative")
	case want != "":
		return errors.New(want)
	case value == 0 && f.none:
		value = -1
	case value == 0 && f.fallback != 0:
		return errors.New("it must be positive")
	}
	f.set(f.config, value)
	return nil
}

func (f *tuningFlag) parse(text string) (int64, error) {
	switch f.at(f.config).(type) {
	case *time.Duration:
		d, err := time.ParseDuration(text)
		return int64(d), err
	case *int64:
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return 0, fmt.Errorf("want a number of bytes, for example 134217728 or 128Mi: %w", err)
		}
		n := quantity.Value() // rounded, and no more than fits
		if quantity.CmpInt64(n) != 0 {
			return 0, errors.New("want a whole number of bytes that fits into 64 bits, for example 134217728 or 128Mi")
		}
		return n, nil
	}
	n, err := strconv.Atoi(text)
	return int64(n), err
}

// Type implements pflag.Value.
func (f *tuningFlag) Type() string {
	switch f.at(f.config).(type) {
	case *time.Duration:
		return "duration"
	case *int64:
		return "quantity"
	}
	return "int"
}

// tuning describes an optional field of Config that holds a number or a switch: its
// default, its bounds, and its flag, if it has one.
type tuning struct {
	name string
	at   func(*Config) any // a *time.Duration, *int64 (bytes), *int or *bool
	// fallback replaces a zero.
	fallback int64
	// shortest is the smallest positive value, most the largest one.
	shortest, most int64
	// none: a negative value is allowed, and removes the bound.
	none        bool
	flag, usage string
}

const (
	// maxDuration and maxBytes are more than is of use, and little enough for
	// sums and multiples of them.
	maxDuration = int64(365 * 24 * time.Hour)
	maxBytes    = 1 << 40
	// millisecond: a number without a unit is nanoseconds, most likely by mistake.
	millisecond = int64(time.Millisecond)
	// second is the least for fields that cost Storage a read of all keys or objects.
	second = int64(time.Second)
)

// tunings are the optional fields in the order of their flags.
var tunings = []tuning{
	{
		name: "EventsHistoryWindow", at: func(c *Config) any { return &c.EventsHistoryWindow }, most: maxDuration,
		flag: "watch-cache-window", usage: "For how long a watch cache keeps events for watches that resume, as far as " +
			"--watch-cache-window-bytes allows. 0: as the server's code says, usually 75s.",
	},
	{
		name: "WindowBytes", at: func(c *Config) any { return &c.WindowBytes }, fallback: DefaultWindowBytes, most: maxBytes,
		flag: "watch-cache-window-bytes", usage: "How much memory the events of one watch cache take beyond the current state, in bytes; " +
			"128Mi, say. Events go when they need more, whatever --watch-cache-window says. Watches that keep more in memory while they " +
			"are sent their initial events end with 410.",
	},
	{
		name: "EncodingBytes", at: func(c *Config) any { return &c.EncodingBytes }, fallback: DefaultEncodingBytes, most: maxBytes, none: true,
		flag: "watch-cache-encoding-bytes", usage: "How much memory one watch cache takes for serializations that watches and lists share, in bytes. " +
			"Unless it is set, a watch cache of many objects takes up to 15 % of their memory, 1Gi at most. 0: none are kept.",
	},
	{
		name: "FreshnessTimeout", at: func(c *Config) any { return &c.FreshnessTimeout }, fallback: int64(DefaultFreshnessTimeout),
		shortest: millisecond, most: maxDuration,
		flag: "watch-cache-freshness-timeout", usage: "How long a LIST waits for a watch cache to be as fresh as the LIST needs; then a few go to etcd " +
			"(--watch-cache-max-fallback-lists) and the others get 429. A GET waits a sixth of it and then goes to etcd.",
	},
	{
		name: "StorageTimeout", at: func(c *Config) any { return &c.StorageTimeout }, fallback: int64(DefaultStorageTimeout),
		shortest: second, most: maxDuration,
		flag: "watch-cache-storage-timeout", usage: "For how long etcd may leave requests unanswered before it counts as lost: that is logged, and reads " +
			"that need it end with 504 until it is back. At least 1s.",
	},
	{
		name: "MaxFallbackLists", at: func(c *Config) any { return &c.MaxFallbackLists }, fallback: DefaultMaxFallbackLists, most: 10_000, none: true,
		flag: "watch-cache-max-fallback-lists", usage: "How many LISTs of a resource go to etcd, at a time and in each --watch-cache-freshness-timeout, " +
			"when its watch cache does not become fresh. 0: none.",
	},
	{
		name: "ConsistencyCheckInterval", at: func(c *Config) any { return &c.ConsistencyCheckInterval }, fallback: int64(DefaultConsistencyCheckInterval),
		shortest: second, most: maxDuration, none: true,
		flag: "watch-cache-consistency-check-interval", usage: "The time between two comparisons of a watch cache with etcd, which read all keys " +
			"of the resource. At least 1s. 0: none are made.",
	},
	{
		name: "ConsistentGetFromStorage", at: func(c *Config) any { return &c.ConsistentGetFromStorage }, most: 1,
		flag: "watch-cache-consistent-get-from-storage", usage: "Answer GETs without a resourceVersion from etcd instead of the watch caches.",
	},
	{
		name: "LazyStart", at: func(c *Config) any { return &c.LazyStart }, most: 1,
		flag: "watch-cache-lazy-start", usage: "Start a watch cache with the first GET, LIST or WATCH of its resource.",
	},
	{
		name: "IdleTimeout", at: func(c *Config) any { return &c.IdleTimeout }, shortest: second, most: maxDuration,
		flag: "watch-cache-idle-timeout", usage: "End a watch cache that was not used for that long, until the next GET, LIST or WATCH. At least 1s. 0: never.",
	},
	{
		name: "AdaptiveIndexes", at: func(c *Config) any { return &c.AdaptiveIndexes }, fallback: DefaultAdaptiveIndexes, most: 100, none: true,
	},
	{
		name: "AdaptivePercent", at: func(c *Config) any { return &c.AdaptivePercent }, fallback: DefaultAdaptivePercent, most: 100,
	},
	{
		name: "DispatchBudget", at: func(c *Config) any { return &c.DispatchBudget }, fallback: int64(DefaultDispatchBudget), most: second, none: true,
	},
	{
		name: "BookmarkInterval", at: func(c *Config) any { return &c.BookmarkInterval }, fallback: int64(DefaultBookmarkInterval),
		shortest: millisecond, most: maxDuration,
	},
	{
		name: "WatchBuffer", at: func(c *Config) any { return &c.WatchBuffer }, fallback: DefaultWatchBuffer, most: 1 << 16,
	},
}

func (t *tuning) field(c *Config) reflect.Value { return reflect.ValueOf(t.at(c)).Elem() }

// get returns the field's value as a number; true is 1.
func (t *tuning) get(c *Config) int64 {
	field := t.field(c)
	switch {
	case field.CanInt():
		return field.Int()
	case field.Bool():
		return 1
	}
	return 0
}

func (t *tuning) set(c *Config, value int64) {
	if field := t.field(c); field.CanInt() {
		field.SetInt(value)
	} else {
		field.SetBool(value != 0)
	}
}

// text returns a value as its flag takes it.
func (t *tuning) text(value int64) string {
	switch t.at(&Config{}).(type) {
	case *time.Duration:
		return time.Duration(value).String()
	case *int64:
		return resource.NewQuantity(value, resource.BinarySI).String()
	}
	return strconv.FormatInt(value, 10)
}

// refuses returns the rule that a value breaks, "" if it breaks none.
func (t *tuning) refuses(value int64) string {
	switch {
	case value < 0 && !t.none:
		return "it must not be negative"
	case value > 0 && value < t.shortest:
		return "it must be at least " + t.text(t.shortest)
	case value > t.most:
		return "it must be at most " + t.text(t.most)
	}
	return ""
}
