// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ForResource gives options to the cache of one resource, in place of what
// options for all caches set. Only options that set a field of Config can be
// given to one cache.
func ForResource(resource schema.GroupResource, opts ...Option) Option {
	return func(o *options) {
		name := fmt.Sprintf("ForResource(%q)", resource)
		switch {
		case resource.Resource == "":
			o.problems.option(name, "names no resource: the resource is empty")
			return
		case len(opts) == 0:
			o.problems.option(name, "is given no options")
			return
		}
		given := collected(opts)
		for _, problem := range given.problems {
			o.problems.option(name, "is given what does not fit: %w", problem)
		}
		if given.isAboutMore() {
			o.problems.option(name, "is given an option that is not about one cache: want only options that set a field of cacher.Config")
		}
		o.resources = append(o.resources, resourceSettings{resource, given.settings})
	}
}

// resourceSettings are the settings of the cache of one resource.
type resourceSettings struct {
	resource schema.GroupResource
	settings []setting
}

// isAboutMore reports whether an option is among o that can't be given to one
// cache.
func (o *options) isAboutMore() bool {
	s := o.selection
	return o.rawStorage != nil || o.flags != nil || len(o.defaults) > 0 || len(o.resources) > 0 ||
		len(s.only) > 0 || len(s.except) > 0 || s.etcdChecks
}

// checkResources adds the default settings of resources, and looks for
// what is wrong with the settings of each resource, beside those of all.
func (o *options) checkResources(defaults []resourceSettings) {
	given := o.resources
	o.resources = slices.Concat(defaults, given)
	known := wrongWith(o.settings)
	for _, resource := range resourcesOf(o.resources) {
		name := fmt.Sprintf("ForResource(%q)", resource)
		if !o.selection.Includes(resource) {
			o.problems.option(name, "is given options for a cache, but cacher.Only or cacher.Except leave the resource uncached")
		}
		wrong := repeated(settingsOf(given, resource))
		for _, problem := range wrongWith(append(slices.Clip(o.settings), settingsOf(o.resources, resource)...)) {
			if !slices.ContainsFunc(known, func(k error) bool { return k.Error() == problem.Error() }) {
				wrong = append(wrong, problem)
			}
		}
		for _, problem := range wrong {
			o.problems.option(name, "is given what does not fit: %w", problem)
		}
	}
	o.selection.tuned = resourcesOf(o.resources)
}

// resourcesOf returns each resource once.
func resourcesOf(all []resourceSettings) (resources []schema.GroupResource) {
	for _, r := range all {
		if !slices.Contains(resources, r.resource) {
			resources = append(resources, r.resource)
		}
	}
	return resources
}

func settingsOf(all []resourceSettings, resource schema.GroupResource) (settings []setting) {
	for _, r := range all {
		if r.resource == resource {
			settings = append(settings, r.settings...)
		}
	}
	return settings
}
