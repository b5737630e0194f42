// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kube-watchcache/watchcache/cacher"
)

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

// layout derives the form of a cache's keys and the names of its fields from
// the cache's functions, called with an empty object.
type layout struct {
	config cacher.Config
	// fields returns the fields that field selectors can use; nil if they are not
	// known.
	fields func() fields.Set
}

func layoutOf(config cacher.Config) layout {
	return layout{config: config, fields: sync.OnceValue(func() fields.Set { return fieldsOf(config) })}
}

// fieldsOf returns the fields of an empty object, nil if the resource's
// GetAttrsFunc panics or fails with such an object.
func fieldsOf(config cacher.Config) (set fields.Set) {
	defer func() {
		if recover() != nil {
			set = nil
		}
	}()
	if _, set, err := config.GetAttrsFunc(config.NewFunc()); err == nil {
		return set
	}
	return nil
}

// checkFields returns an error for a field that no object of the cache has, as
// an API server refuses a field that its scheme does not have. Otherwise, a
// misspelt field would select nothing, without an error.
func (l layout) checkFields(selector fields.Selector) error {
	for _, r := range selector.Requirements() {
		if r.Field == nameField || r.Field == namespaceField {
			continue
		}
		if known := l.fields(); known != nil && !known.Has(r.Field) {
			return fmt.Errorf("%s can't be selected by %q, only by %s",
				l.config.GroupResource, r.Field, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	return nil
}

// keyOf returns the key of the object of that name.
func (l layout) keyOf(namespace, name string) (string, error) {
	object := l.config.NewFunc()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	accessor.SetNamespace(namespace)
	accessor.SetName(name)
	return l.config.KeyFunc(object)
}

// namespaced reports whether keys depend on the namespace.
func (l layout) namespaced() (bool, error) {
	one, err := l.keyOf("one", "x")
	if err != nil {
		return false, err
	}
	two, err := l.keyOf("two", "x")
	return one != two, err
}

// prefixOf returns the prefix of all keys of a namespace, with a trailing "/".
func (l layout) prefixOf(namespace string) (string, error) {
	if problems := content.IsPathSegmentName(namespace); len(problems) > 0 || namespace == "" {
		return "", errors.New(strings.Join(append([]string{"not a valid name of a namespace"}, problems...), ": "))
	}
	switch namespaced, err := l.namespaced(); {
	case err != nil:
		return "", fmt.Errorf("cacher.Config.KeyFunc fails for an empty object: %w", err)
	case !namespaced:
		return "", fmt.Errorf("%s has no namespaces", l.config.GroupResource)
	}
	var prefix string
	for _, name := range []string{"x", "y"} {
		key, err := l.keyOf(namespace, name)
		if err != nil {
			return "", fmt.Errorf("cacher.Config.KeyFunc fails for an object in this namespace: %w", err)
		}
		root, ok := strings.CutSuffix(key, "/"+name)
		root += "/"
		if !ok || !strings.HasPrefix(root, l.config.ResourcePrefix) || (prefix != "" && root != prefix) {
			return "", fmt.Errorf("the keys of %s do not begin with the namespace: one key is %q", l.config.GroupResource, key)
		}
		prefix = root
	}
	return prefix, nil
}

// single returns the key of the only object that can have the name; false if
// there may be several, or none.
func (l layout) single(namespace, name string) (string, bool) {
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return "", false
	}
	if namespace == "" {
		if namespaced, err := l.namespaced(); err != nil || namespaced {
			return "", false
		}
	}
	key, err := l.keyOf(namespace, name)
	return key, err == nil
}
