// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/tools/cache"
)

// request is what a registry asks a decorator for.
type request struct {
	config             *storagebackend.ConfigForResource
	prefix             string
	keyOf              func(runtime.Object) (string, error)
	newObject, newList func() runtime.Object
	attrs              storage.AttrFunc
	triggers           storage.IndexerFuncs
	indexers           *cache.Indexers
}

// identity is what two requests have in common that one cache can serve: the
// same objects under the same keys of the same servers, read, written and
// described alike. A server that makes a store for each version it serves asks
// twice for what is the same but for the addresses of its functions: those are
// told apart by their code and by their answers for an empty and for a named
// object.
type identity struct {
	resource     schema.GroupResource
	prefix       string
	servers      string
	egress       uintptr
	settings     string
	codec        runtime.Identifier
	transformer  any
	object, list reflect.Type
	functions    string
	answers      string
}

func (r request) identity() identity {
	config, transport := r.config, r.config.Transport
	id := identity{
		resource: config.GroupResource,
		prefix:   r.prefix,
		servers: fmt.Sprintf("%q %q %q %q", slices.Sorted(slices.Values(transport.ServerList)),
			transport.CertFile, transport.KeyFile, transport.TrustedCAFile),
		egress: codeOf(transport.EgressLookup),
		settings: fmt.Sprintf("%q %q %v %v %+v", config.Type, config.Prefix, config.CompactionInterval,
			config.EventsHistoryWindow, config.LeaseManagerConfig),
		transformer: valueOf(config.Transformer),
		object:      typeMade(r.newObject),
		list:        typeMade(r.newList),
		functions:   fmt.Sprint(codeOf(r.keyOf), codeOf(r.attrs)) + functionsOf(r.triggers),
	}
	if config.Codec != nil {
		id.codec = config.Codec.Identifier()
	}
	if r.indexers != nil {
		id.functions += functionsOf(*r.indexers)
	}
	if r.newObject != nil {
		id.answers = r.answersFor("", "") + r.answersFor("namespace", "name")
	}
	return id
}

// answersFor describes what the functions say of an object with nothing but a
// name.
func (r request) answersFor(namespace, name string) (described string) {
	defer func() {
		if p := recover(); p != nil {
			described = fmt.Sprint(p) // it is for objects that have more
		}
	}()
	object := r.newObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetNamespace(namespace)
		accessor.SetName(name)
	}
	var answers []any
	if r.keyOf != nil {
		key, err := r.keyOf(object)
		answers = append(answers, key, err)
	}
	if r.attrs != nil {
		labels, fields, err := r.attrs(object)
		answers = append(answers, labels, fields, err)
	}
	return fmt.Sprintf("%q", answers)
}

// functionsOf describes functions by name.
func functionsOf[F any](functions map[string]F) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		fmt.Fprintf(&b, " %q %d", name, codeOf(functions[name]))
	}
	return b.String()
}

// codeOf returns where the code of a function is, 0 for nil. It is the same for
// all closures of one place in the source.
func codeOf(function any) uintptr {
	if v := reflect.ValueOf(function); v.IsValid() && !v.IsNil() {
		return v.Pointer()
	}
	return 0
}

// valueOf returns what a pointer points to, if that can be compared: a
// transformer is often made anew for each request, of the same parts.
func valueOf(v any) any {
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() && p.Elem().Comparable() {
		return p.Elem().Interface()
	}
	if v != nil && !reflect.ValueOf(v).Comparable() {
		return new(byte) // like no other
	}
	return v
}

func typeMade(make func() runtime.Object) reflect.Type {
	if make == nil {
		return nil
	}
	return reflect.TypeOf(make())
}
