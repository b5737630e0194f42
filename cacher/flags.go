// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	// LabelIndexes are the label keys to keep an index for, by resource. They replace
	// the Config.LabelIndexes of the resource.
	LabelIndexes map[schema.GroupResource][]string
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
	fs.Var(&labelIndexes{to: &o.LabelIndexes}, labelIndexesFlag, "Labels to keep an index for, for LISTs and watches that select by them: "+
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
// refused when the flags are parsed, except label indexes, resources and a share.
func (o *Options) Validate() (wrong []error) {
	var found problems
	o.Config.validateTuning(&found)
	var flagged Config
	o.apply(&flagged)
	if !reflect.DeepEqual(flagged, o.Config) {
		found.option("Options", "sets a field of cacher.Config that has no flag: use cacher.Configure or cacher.ForResource")
	}
	for _, of := range o.indexed() {
		if of.Resource == "" {
			found = append(found, fmt.Errorf("--%s names %q: the resource is empty", labelIndexesFlag, of))
		}
		var labels problems
		Config{LabelIndexes: o.LabelIndexes[of]}.validateTuning(&labels)
		for _, problem := range labels {
			found = append(found, fmt.Errorf("--%s for %s: %w", labelIndexesFlag, of, problem))
		}
	}
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

// indexed returns the resources that have label indexes, in order.
func (o *Options) indexed() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(o.LabelIndexes), func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
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
		case all.flags != nil:
			all.problems.option("WithOptions", "is given twice: want one of them")
			return
		}
		all.flags = o
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
	value := max(0, cmp.Or(f.get(f.config), f.fallback))
	switch f.at(f.config).(type) {
	case *int64:
		return resource.NewQuantity(value, resource.BinarySI).String()
	case *time.Duration:
		if value == 0 {
			return "0" // which --help leaves out
		}
	}
	return f.text(value)
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

// labelIndexes is a flag that is a list of RESOURCE[.GROUP]#LABEL.
type labelIndexes struct {
	to *map[schema.GroupResource][]string
	// given is false as long as to has the flag's default, which the first use of
	// the flag replaces.
	given bool
}

// String implements pflag.Value.
func (l *labelIndexes) String() string {
	if l.to == nil { // pflag makes one to look at the zero value
		return ""
	}
	var all []string
	for of, labels := range *l.to {
		for _, label := range labels {
			all = append(all, of.String()+"#"+label)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// Set implements pflag.Value.
func (l *labelIndexes) Set(text string) error {
	indexes := map[schema.GroupResource][]string{}
	if l.given {
		for of, labels := range *l.to {
			indexes[of] = slices.Clone(labels)
		}
	}
	if text == "" { // takes the default away
		*l.to, l.given = indexes, true
		return nil
	}
	for entry := range strings.SplitSeq(text, ",") {
		name, label, _ := strings.Cut(entry, "#")
		if name == "" || label == "" {
			return fmt.Errorf("%q: want RESOURCE[.GROUP]#LABEL, as devices.fleet.example.com#site", entry)
		}
		of := schema.ParseGroupResource(name)
		indexes[of] = append(indexes[of], label)
	}
	*l.to, l.given = indexes, true
	return nil
}

// Type implements pflag.Value.
func (l *labelIndexes) Type() string { return "strings" }
