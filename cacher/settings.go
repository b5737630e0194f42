// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apiserver/pkg/registry/generic"
)

// options are what Options of a Decorator have set, and what is wrong with them.
type options struct {
	rawStorage RawStorageFunc // nil: none was given
	// prefersLists: rawStorage opens storages that are faster to list than to stream.
	prefersLists bool
	selection    Selection
	settings     []setting
	resources    []resourceSettings
	defaults     []Option
	flags        *Options
	problems     problems // of options that do not fit
}

// setting is what an option does to one field of Config.
type setting struct {
	option, field string
	set           func(*Config)
}

// optionsOf collects options, and what is wrong with any of them.
func optionsOf(opts []Option) options {
	o := collected(opts)
	defaults := collected(o.defaults)
	o.problems = append(o.problems, repeated(o.settings)...)
	o.selection.validate(&o.problems)
	o.problems = append(o.problems, defaults.problems...)
	o.settings = slices.Concat(defaults.settings, o.settings)
	o.problems = append(o.problems, wrongWith(o.settings)...)
	o.checkResources(defaults.resources)
	if o.rawStorage == nil {
		o.rawStorage = defaults.rawStorage
	}
	if o.rawStorage == nil {
		o.rawStorage, o.prefersLists = generic.NewRawStorage, true
	}
	return o
}

func collected(opts []Option) options {
	var o options
	for i, option := range opts {
		if option == nil {
			o.problems.option("Option", "%d of %d is nil: leave it out", i+1, len(opts))
			continue
		}
		option(&o)
	}
	return o
}

// wrongWith returns what is wrong with the fields that settings set, each error
// with the name of the option.
func wrongWith(settings []setting) (wrong problems) {
	var config Config
	optionOf := map[string]string{}
	for _, s := range settings {
		s.set(&config)
		optionOf[s.field] = s.option
	}
	var found problems
	config.withDefaults().validateTuning(&found)
	for _, problem := range found {
		var field fieldError
		if errors.As(problem, &field) && optionOf[field.name] != "" {
			problem = fmt.Errorf("cacher.%s: %w", optionOf[field.name], problem)
		}
		wrong = append(wrong, problem)
	}
	return wrong
}

// repeated looks for fields of Config that more than one option sets: which
// of the values is meant can't be told.
func repeated(settings []setting) (wrong problems) {
	before := map[string]setting{}
	for _, s := range settings {
		if first, ok := before[s.field]; ok {
			wrong.option("Config."+s.field, "is set by two options, by %s to %v and by %s to %v: want one of them",
				first.option, first.value(), s.option, s.value())
		}
		before[s.field] = s
	}
	return wrong
}

// value returns what the setting sets its field to.
func (s setting) value() any {
	var config Config
	s.set(&config)
	return reflect.ValueOf(config).FieldByName(s.field)
}

// apply sets the fields of the cache of a resource: those for all resources,
// then those for this one.
func (o *options) apply(config *Config) {
	for _, s := range slices.Concat(o.settings, settingsOf(o.resources, config.GroupResource)) {
		s.set(config)
	}
}
