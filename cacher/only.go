// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Only leaves all resources but these uncached: Decorator gives their raw
// storage, and server.Install leaves them what they had. Of several, each must
// name a resource for it to be cached.
func Only(resources ...schema.GroupResource) Option {
	return func(o *options) {
		o.selection.only = append(o.selection.only, resources)
		o.errs = append(o.errs, checkNamed("Only", resources))
	}
}

// Except leaves these resources uncached, as Only does all others.
func Except(resources ...schema.GroupResource) Option {
	return func(o *options) {
		o.selection.except = append(o.selection.except, resources...)
		o.errs = append(o.errs, checkNamed("Except", resources))
	}
}

func checkNamed(option string, resources []schema.GroupResource) error {
	if len(resources) == 0 {
		return fmt.Errorf("cacher.%s names no resource", option)
	}
	for _, r := range resources {
		if r.Resource == "" {
			return fmt.Errorf("cacher.%s names %q: the resource is empty", option, r)
		}
	}
	return nil
}

// Selection is which resources the options Only and Except leave to the cache.
type Selection struct {
	only   [][]schema.GroupResource
	except []schema.GroupResource
}

// SelectionOf returns the selection of some options. The error names an option
// that can't be meant as it is.
func SelectionOf(opts ...Option) (Selection, error) {
	o := optionsOf(opts)
	return o.selection, errors.Join(o.errs...)
}

// Includes tells whether a resource is to be cached.
func (s Selection) Includes(resource schema.GroupResource) bool {
	for _, only := range s.only {
		if !slices.Contains(only, resource) {
			return false
		}
	}
	return !slices.Contains(s.except, resource)
}

// Named returns the resources that the options name.
func (s Selection) Named() []schema.GroupResource {
	return slices.Concat(append(slices.Clone(s.only), s.except)...)
}
