// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Only leaves all resources but these uncached: Decorator gives their raw
// storage, and server.Install leaves them what they had. Of several, each must
// name a resource for it to be cached.
func Only(resources ...schema.GroupResource) Option {
	return func(o *options) {
		o.selection.only = append(o.selection.only, resources)
		checkResources(&o.problems, "Only", resources)
	}
}

// Except leaves these resources uncached, as Only does all others.
func Except(resources ...schema.GroupResource) Option {
	return func(o *options) {
		o.selection.except = append(o.selection.except, resources...)
		checkResources(&o.problems, "Except", resources)
	}
}

// checkResources looks at what an option names, up to the first thing that is wrong.
func checkResources(p *problems, option string, resources []schema.GroupResource) {
	if len(resources) == 0 {
		p.option(option, "names no resource")
	}
	for i, r := range resources {
		switch {
		case r.Resource == "":
			p.option(option, "names %q: the resource is empty", r)
			return
		case slices.Contains(resources[:i], r):
			p.option(option, "names %q twice", r)
			return
		}
	}
}

// WithServerEtcdChecks makes server.Install leave the health checks of etcd that
// the server has. They have clients of their own, and after an outage of etcd
// they may fail for minutes longer than reads. A Decorator ignores it.
func WithServerEtcdChecks() Option {
	return func(o *options) { o.selection.etcdChecks = true }
}

// Selection is what options leave to the server that a cache is installed in:
// which resources Only and Except keep out of the cache, which resources have
// options of their own, and whether WithServerEtcdChecks is among them.
type Selection struct {
	etcdChecks bool
	tuned      []schema.GroupResource
	only       [][]schema.GroupResource
	except     []schema.GroupResource
}

// SelectionOf returns the selection of some options. The error names every option
// that does not fit.
func SelectionOf(opts ...Option) (Selection, error) {
	o := optionsOf(opts)
	return o.selection, errors.Join(o.problems...)
}

// validate looks for options that contradict each other.
func (s Selection) validate(p *problems) {
	for i, r := range s.except {
		if !slices.Contains(s.except[:i], r) && slices.ContainsFunc(s.only, func(only []schema.GroupResource) bool { return slices.Contains(only, r) }) {
			p.option("Except", "names %q, which cacher.Only names as well", r)
		}
	}
	if len(s.only) > 1 && !slices.ContainsFunc(s.only[0], func(r schema.GroupResource) bool {
		return !slices.ContainsFunc(s.only, func(only []schema.GroupResource) bool { return !slices.Contains(only, r) })
	}) {
		p.option("Only", "is given %d times, and no resource is named by each: %v", len(s.only), s.only)
	}
}

// Includes reports whether a resource is to be cached.
func (s Selection) Includes(resource schema.GroupResource) bool {
	for _, only := range s.only {
		if !slices.Contains(only, resource) {
			return false
		}
	}
	return !slices.Contains(s.except, resource)
}

// KeepsEtcdChecks reports whether WithServerEtcdChecks is among the options.
func (s Selection) KeepsEtcdChecks() bool { return s.etcdChecks }

// Named returns the resources that the options name.
func (s Selection) Named() []schema.GroupResource {
	return slices.Concat(append(slices.Clone(s.only), s.except, s.tuned)...)
}
