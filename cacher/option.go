// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/metrics"
)

// Option changes the caches of a Decorator. An error names all invalid options: server.Install
// returns it at once, a Decorator with its first storage.
type Option func(*options)

type options struct {
	rawStorage RawStorageFunc // nil means etcd
	configure  []func(*Config)
	resources  []resourceSettings
	only       [][]schema.GroupResource
	except     []schema.GroupResource
	leftOut    []func(schema.GroupResource) error
	named      []schema.GroupResource // of LeaveOut
	shadow     inShadow
	problems   problems
}

type resourceSettings struct {
	resource schema.GroupResource
	set      func(*Config)
}

// Configure sets EventsHistoryWindow or fields of Config after Clock, for all caches.
// Later functions override earlier ones, ForResource overrides Configure. To validate values,
// Decorator also calls set on an empty Config.
func Configure(set func(*Config)) Option {
	return func(o *options) {
		if set == nil {
			o.problems.option("Configure", "is given nil: the function is required")
			return
		}
		o.configure = append(o.configure, set)
	}
}

// ForResource is Configure for the cache of one resource.
func ForResource(resource schema.GroupResource, set func(*Config)) Option {
	return func(o *options) {
		name := fmt.Sprintf("ForResource(%q)", resource)
		switch {
		case resource.Resource == "":
			o.problems.option(name, "names no resource: the resource is empty")
		case set == nil:
			o.problems.option(name, "is given nil: the function is required")
		default:
			o.resources = append(o.resources, resourceSettings{resource, set})
		}
	}
}

// WithMetrics sets Config.Metrics.
func WithMetrics(m *metrics.Metrics) Option {
	return Configure(func(c *Config) { c.Metrics = m })
}

// WithRawStorage replaces generic.NewRawStorage, which opens an etcd client per resource.
func WithRawStorage(open RawStorageFunc) Option {
	return func(o *options) {
		if open == nil {
			o.problems.option("WithRawStorage", "is given nil: the function is required")
			return
		}
		o.rawStorage = open
	}
}

// Only leaves other resources uncached: Decorator returns their raw storage, and server.Install
// does not change them. Several calls cache the resources common to all.
func Only(resources ...schema.GroupResource) Option {
	return func(o *options) {
		o.only = append(o.only, resources)
		checkResources(&o.problems, "Only", resources)
	}
}

// Except leaves these resources uncached.
func Except(resources ...schema.GroupResource) Option {
	return func(o *options) {
		o.except = append(o.except, resources...)
		checkResources(&o.problems, "Except", resources)
	}
}

func checkResources(p *problems, option string, resources []schema.GroupResource) {
	if len(resources) == 0 {
		p.option(option, "names no resource")
	}
	for _, r := range resources {
		if r.Resource == "" {
			p.option(option, "names %q: the resource is empty", r)
		}
	}
}

// Group is the options that collect returns when Decorator or server.Install is called. An error of
// collect counts as an invalid option.
func Group(collect func() ([]Option, error)) Option {
	return func(o *options) {
		all, err := collect()
		if err != nil {
			o.problems = append(o.problems, err)
		}
		for _, option := range all {
			option(o)
		}
	}
}

// LeaveOut leaves a resource for which reason returns an error to another cache: server.Install
// does not change it, and a Decorator returns the error. named are the resources named by an
// operator.
func LeaveOut(named []schema.GroupResource, reason func(schema.GroupResource) error) Option {
	return func(o *options) {
		o.named = append(o.named, named...)
		o.leftOut = append(o.leftOut, reason)
	}
}

// Selection is the effect of options, for server.Install.
type Selection struct {
	// Cached reports whether a resource has a cache.
	Cached func(schema.GroupResource) bool
	// Named are all resources that the options name.
	Named []schema.GroupResource
	// InShadow, RawStorage and LeaveOut report which options are present.
	InShadow, RawStorage, LeaveOut bool
}

// Select evaluates options. The error names every invalid option.
func Select(opts ...Option) (Selection, error) {
	o := optionsOf(opts)
	named := slices.Concat(append(slices.Clone(o.only), o.except)...)
	for _, r := range o.resources {
		named = append(named, r.resource)
	}
	return Selection{
		Cached:     func(gr schema.GroupResource) bool { return o.includes(gr) && o.otherCache(gr) == nil },
		Named:      append(named, o.named...),
		InShadow:   o.shadow.open != nil,
		RawStorage: o.rawStorage != nil,
		LeaveOut:   len(o.leftOut) > 0,
	}, errors.Join(o.problems...)
}

// otherCache returns why another cache serves the resource, or nil.
func (o *options) otherCache(gr schema.GroupResource) error {
	for _, reason := range o.leftOut {
		if err := reason(gr); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) includes(resource schema.GroupResource) bool {
	for _, only := range o.only {
		if !slices.Contains(only, resource) {
			return false
		}
	}
	return !slices.Contains(o.except, resource)
}

func optionsOf(opts []Option) *options {
	o := &options{}
	for i, option := range opts {
		if option == nil {
			o.problems.option("Option", "%d of %d is nil: leave it out", i+1, len(opts))
			continue
		}
		option(o)
	}
	o.checkSettings()
	return o
}

func (o *options) checkSettings() {
	var all Config
	for _, set := range o.configure {
		set(&all)
	}
	all.withDefaults().validateTuning(&o.problems)
	for _, r := range o.resources {
		name := fmt.Sprintf("ForResource(%q)", r.resource)
		if !o.includes(r.resource) {
			o.problems.option(name, "sets fields of a cache, but cacher.Only or cacher.Except leave the resource uncached")
		}
		one := Config{GroupResource: r.resource}
		r.set(&one)
		var wrong problems
		one.withDefaults().validateTuning(&wrong)
		for _, problem := range wrong {
			o.problems.option(name, "is invalid: %w", problem)
		}
	}
}

// apply sets fields: those for all resources, then those for config.GroupResource.
func (o *options) apply(config *Config) {
	for _, set := range o.configure {
		set(config)
	}
	for _, r := range o.resources {
		if r.resource == config.GroupResource {
			r.set(config)
		}
	}
}
