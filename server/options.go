// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-watchcache/watchcache/cacher"
)

// Options are the settings of a server's caches that an operator can change by flags. Create them
// with NewOptions, change defaults, call AddFlags and, after flag parsing, Validate, and pass
// WithOptions to Install or cacher.Decorator.
type Options struct {
	// Fields of cacher.Config, applied to all caches. A value set before AddFlags is the flag's
	// default. Zero leaves the field unchanged.
	EventsHistoryWindow      time.Duration
	WindowBytes              int64
	EncodingBytes            int64
	FreshnessTimeout         time.Duration
	StorageTimeout           time.Duration
	MaxFallbackLists         int
	ConsistencyCheckInterval time.Duration
	ConsistentGetFromStorage bool
	LazyStart                bool
	IdleTimeout              time.Duration

	// LabelIndexes are labels to index, each as RESOURCE[.GROUP]#LABEL, and replace the resource's
	// Config.LabelIndexes.
	LabelIndexes []string
	// Implementation is the cache of all resources, "" for ImplementationWatchCache. Another one
	// requires Install; cacher.Decorator returns an error.
	Implementation Implementation
	// Shipped are resources that use the shipped cacher, each as RESOURCE[.GROUP].
	Shipped []string
	// Shadow is the fraction of GETs, LISTs and WATCHes, from 0 to 1, that this module's caches
	// repeat for comparison while the shipped cacher serves. Caches in shadow ignore LazyStart and
	// IdleTimeout. 0 disables this.
	Shadow float64
}

// Implementation names a watch cache. It is a pflag.Value.
type Implementation string

const (
	// ImplementationWatchCache is the cache of this module.
	ImplementationWatchCache Implementation = "watchcache"
	// ImplementationShipped is the cacher of k8s.io/apiserver.
	ImplementationShipped Implementation = "shipped"
)

// NewOptions returns Options with the default values.
func NewOptions() *Options { return &Options{} }

const (
	labelIndexesFlag   = "watch-cache-label-indexes"
	implementationFlag = "watch-cache-implementation"
	shippedFlag        = "watch-cache-shipped"
	shadowFlag         = "watch-cache-shadow"
)

// AddFlags adds the flags, with the current values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.Var(o.duration(&o.EventsHistoryWindow, 0, false), "watch-cache-window",
		"The minimum age of the events that a watch cache keeps for watches that resume, as far as --watch-cache-window-bytes allows. "+
			"0: as the server's code says, usually 75s.")
	fs.Var(o.bytes(&o.WindowBytes, cacher.DefaultWindowBytes, false), "watch-cache-window-bytes",
		"The memory that the events of one watch cache may take beyond the current state, in bytes, e.g. 128Mi. A cache drops events beyond "+
			"the limit, whatever --watch-cache-window says, and ends watches with 410 that hold more memory while they receive their initial events.")
	fs.Var(o.bytes(&o.EncodingBytes, cacher.DefaultEncodingBytes, true), "watch-cache-encoding-bytes",
		"The memory that one watch cache may take for serializations that watches and lists share, in bytes. "+
			"Unless it is set, a watch cache of many objects takes up to 15 % of their memory, 1Gi at most. 0: none are kept.")
	fs.Var(o.duration(&o.FreshnessTimeout, cacher.DefaultFreshnessTimeout, false), "watch-cache-freshness-timeout",
		"How long a LIST waits for a watch cache to be as fresh as the LIST needs; then a few go to etcd "+
			"(--watch-cache-max-fallback-lists) and the others get 429. A GET waits a sixth of it and then goes to etcd.")
	fs.Var(o.duration(&o.StorageTimeout, cacher.DefaultStorageTimeout, false), "watch-cache-storage-timeout",
		"How long etcd may leave requests unanswered before a watch cache treats it as lost: the cache logs that, and reads that "+
			"need etcd end with 504 until it is back. At least 1s.")
	fs.Var(o.count(&o.MaxFallbackLists, cacher.DefaultMaxFallbackLists, true), "watch-cache-max-fallback-lists",
		"The number of LISTs of a resource that go to etcd, at a time and in each --watch-cache-freshness-timeout, "+
			"when its watch cache does not become fresh. 0: none.")
	fs.Var(o.duration(&o.ConsistencyCheckInterval, cacher.DefaultConsistencyCheckInterval, true), "watch-cache-consistency-check-interval",
		"The time between two comparisons of a watch cache with etcd, which read all keys "+
			"of the resource. At least 1s. 0: none are made.")
	fs.BoolVar(&o.ConsistentGetFromStorage, "watch-cache-consistent-get-from-storage", o.ConsistentGetFromStorage,
		"Answer GETs without a resourceVersion from etcd instead of the watch caches.")
	fs.BoolVar(&o.LazyStart, "watch-cache-lazy-start", o.LazyStart,
		"Start a watch cache with the first GET, LIST or WATCH of its resource.")
	fs.Var(o.duration(&o.IdleTimeout, 0, false), "watch-cache-idle-timeout",
		"End a watch cache that was not used for that long, until the next GET, LIST or WATCH. At least 1s. 0: never.")
	fs.StringSliceVar(&o.LabelIndexes, labelIndexesFlag, o.LabelIndexes, "Labels to index, for LISTs and watches that select by them: "+
		"a comma-separated list of RESOURCE[.GROUP]#LABEL, e.g. devices.fleet.example.com#site. The flag may be repeated.")
	fs.Var(&o.Implementation, implementationFlag, `The watch cache of all resources: "watchcache", or "shipped" to go back to the cacher of k8s.io/apiserver. `+
		"Resources without a watch cache (--watch-cache, --watch-cache-sizes) stay without one.")
	fs.StringSliceVar(&o.Shipped, shippedFlag, o.Shipped, "Resources that go back to the cacher of k8s.io/apiserver: "+
		"a comma-separated list of RESOURCE[.GROUP], e.g. devices.fleet.example.com or pods. The flag may be repeated. "+
		"The server logs a resource that it does not store once it is ready.")
	fs.Float64Var(&o.Shadow, shadowFlag, o.Shadow, "Let the cacher of k8s.io/apiserver answer all requests, and compare this fraction of them, from 0 to 1, with the watch cache beside it: "+
		"see the metrics watchcache_shadow_* and /debug/watchcache.")
}

// Validate returns an error for each invalid value. Flag parsing already rejects invalid numbers.
func (o *Options) Validate() (wrong []error) {
	if err := o.checkNumbers(); err != nil {
		wrong = append(wrong, err)
	}
	_, invalid := o.labelIndexes()
	wrong = append(wrong, invalid...)
	if err := new(Implementation).Set(o.Implementation.String()); err != nil {
		wrong = append(wrong, fmt.Errorf("--%s: %w", implementationFlag, err))
	}
	switch {
	case !(o.Shadow >= 0 && o.Shadow <= 1): // or NaN
		wrong = append(wrong, fmt.Errorf("--%s is %v: want a fraction of the requests, from 0 to 1, e.g. 0.01", shadowFlag, o.Shadow))
	case o.Shadow > 0 && o.Implementation == ImplementationShipped:
		wrong = append(wrong, fmt.Errorf("--%s is %v, and with --%s=%s there is no cache to compare: want one of them", shadowFlag, o.Shadow, implementationFlag, o.Implementation))
	}
	for _, name := range o.Shipped {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			wrong = append(wrong, fmt.Errorf("--%s names %q: want RESOURCE[.GROUP] in lower case and without a subresource, e.g. devices.fleet.example.com or pods", shippedFlag, name))
		}
	}
	return wrong
}

func (o *Options) checkNumbers() error {
	_, err := cacher.Select(cacher.Configure(o.apply))
	return err
}

func (o *Options) apply(config *cacher.Config) {
	override(&config.EventsHistoryWindow, o.EventsHistoryWindow)
	override(&config.WindowBytes, o.WindowBytes)
	override(&config.EncodingBytes, o.EncodingBytes)
	override(&config.FreshnessTimeout, o.FreshnessTimeout)
	override(&config.StorageTimeout, o.StorageTimeout)
	override(&config.MaxFallbackLists, o.MaxFallbackLists)
	override(&config.ConsistencyCheckInterval, o.ConsistencyCheckInterval)
	override(&config.ConsistentGetFromStorage, o.ConsistentGetFromStorage)
	override(&config.LazyStart, o.LazyStart)
	override(&config.IdleTimeout, o.IdleTimeout)
}

// override sets a field unless value is zero.
func override[T comparable](field *T, value T) { *field = cmp.Or(value, *field) }

func (o *Options) labelIndexes() (byResource map[schema.GroupResource][]string, wrong []error) {
	byResource = map[schema.GroupResource][]string{}
	for _, entry := range o.LabelIndexes {
		name, label, _ := strings.Cut(entry, "#")
		gr := schema.ParseGroupResource(name)
		if gr.Resource == "" || label == "" {
			wrong = append(wrong, fmt.Errorf("--%s names %q: want RESOURCE[.GROUP]#LABEL, e.g. devices.fleet.example.com#site", labelIndexesFlag, entry))
			continue
		}
		byResource[gr] = append(byResource[gr], label)
	}
	for gr, labels := range byResource {
		if _, err := cacher.Select(cacher.Configure(func(c *cacher.Config) { c.LabelIndexes = labels })); err != nil {
			wrong = append(wrong, fmt.Errorf("--%s for %s: %w", labelIndexesFlag, gr, err))
		}
	}
	return byResource, wrong
}

// WithOptions applies the values that the options have when Install or cacher.Decorator is called.
// Pass it last, because the last option for a field of cacher.Config wins.
func WithOptions(o *Options) cacher.Option {
	return cacher.Group(func() ([]cacher.Option, error) {
		if o == nil {
			return nil, errors.New("server.WithOptions is nil: leave it out")
		}
		if err := errors.Join(o.Validate()...); err != nil {
			return nil, fmt.Errorf("server.WithOptions is invalid: %w", err)
		}
		return o.asOptions(), nil
	})
}

func (o *Options) asOptions() []cacher.Option {
	now := *o
	all := []cacher.Option{cacher.Configure(now.apply)}
	byResource, _ := now.labelIndexes()
	for _, gr := range slices.SortedFunc(maps.Keys(byResource), func(a, b schema.GroupResource) int { return cmp.Compare(a.String(), b.String()) }) {
		all = append(all, cacher.ForResource(gr, func(c *cacher.Config) { c.LabelIndexes = byResource[gr] }))
	}
	if now.Implementation == ImplementationShipped || len(now.Shipped) > 0 {
		var shipped []schema.GroupResource
		for _, name := range now.Shipped {
			shipped = append(shipped, schema.ParseGroupResource(name))
		}
		all = append(all, cacher.LeaveOut(shipped, func(gr schema.GroupResource) error {
			if now.Implementation != ImplementationShipped && !slices.Contains(shipped, gr) {
				return nil
			}
			return fmt.Errorf("the shipped cacher is chosen for %s (--%s, --%s), and only server.Install can switch to it: "+
				"use genericregistry.StorageWithCacher in place of cacher.Decorator", gr, implementationFlag, shippedFlag)
		}))
	}
	if now.Shadow > 0 {
		all = append(all, shadowOption(now.Shadow))
	}
	return all
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

// number is the flag of a field whose zero means the default. On the command line zero means none,
// and is an error unless none is true.
type number[T int | int64 | time.Duration] struct {
	options  *Options
	field    *T
	fallback T
	none     bool
	kind     string
	parse    func(string) (T, error)
	format   func(T) string
}

func (o *Options) duration(field *time.Duration, fallback time.Duration, none bool) pflag.Value {
	return &number[time.Duration]{o, field, fallback, none, "duration", time.ParseDuration, time.Duration.String}
}

func (o *Options) count(field *int, fallback int, none bool) pflag.Value {
	return &number[int]{o, field, fallback, none, "int", strconv.Atoi, strconv.Itoa}
}

func (o *Options) bytes(field *int64, fallback int64, none bool) pflag.Value {
	return &number[int64]{o, field, fallback, none, "quantity", parseBytes, func(n int64) string {
		return resource.NewQuantity(n, resource.BinarySI).String()
	}}
}

func parseBytes(text string) (int64, error) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("want a number of bytes, e.g. 134217728 or 128Mi: %w", err)
	}
	n := quantity.Value() // rounded up, saturated at 64 bits
	if quantity.CmpInt64(n) != 0 {
		return 0, errors.New("want a whole number of bytes that fits into 64 bits, e.g. 134217728 or 128Mi")
	}
	return n, nil
}

// String implements pflag.Value.
func (n *number[T]) String() string {
	if n.field == nil { // pflag compares with a zero value
		return ""
	}
	if value := max(0, cmp.Or(*n.field, n.fallback)); value != 0 {
		return n.format(value)
	}
	return "0" // which --help leaves out
}

// Set implements pflag.Value.
func (n *number[T]) Set(text string) error {
	value, err := n.parse(text)
	switch {
	case err != nil:
		return err
	case value < 0:
		return errors.New("it must not be negative")
	case value == 0 && n.none:
		value = -1
	case value == 0 && n.fallback != 0:
		return errors.New("it must be positive")
	}
	before := *n.field
	*n.field = value
	if err := n.options.checkNumbers(); err != nil {
		*n.field = before
		return err
	}
	return nil
}

// Type implements pflag.Value.
func (n *number[T]) Type() string { return n.kind }
