// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/dump"

	"github.com/kube-watchcache/watchcache/internal/funcvalue"
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
// described alike. Two requests share a cache only if they declare the same
// thing; what can't be compared counts as different.
//
// A server that makes a store for each version it serves asks twice for what is
// the same but for a few addresses. So objects of a Go type are the same if the
// types are, and their codecs if they have one identifier and do the same to an
// object (codecs.go). Objects without a Go type are what their codec makes of
// them, by a hub version and a schema that can't be asked for: their codec must be
// one value. Functions must be one value as well, but for the key function,
// which a registry makes for each store: code and answers tell those apart.
type identity struct {
	resource     schema.GroupResource
	prefix       string
	servers      string
	egress       unsafe.Pointer
	settings     string
	codec        any
	transformer  any
	object, list declaration
	functions    string
	keys         string
}

func (r request) identity() identity {
	config, transport := r.config, r.config.Transport
	id := identity{
		resource: config.GroupResource,
		prefix:   r.prefix,
		servers: fmt.Sprintf("%q %q %q %q", slices.Sorted(slices.Values(transport.ServerList)),
			transport.CertFile, transport.KeyFile, transport.TrustedCAFile),
		egress: funcvalue.Of(transport.EgressLookup),
		settings: fmt.Sprintf("%q %q %v %v %+v", config.Type, config.Prefix, config.CompactionInterval,
			config.EventsHistoryWindow, config.LeaseManagerConfig),
		codec:       declaredCodec(config.Codec, r.newObject),
		transformer: comparableValue(config.Transformer),
		object:      declarationOf(r.newObject),
		list:        declarationOf(r.newList),
		functions:   fmt.Sprint(funcvalue.Of(r.attrs)) + functionsOf(r.triggers),
		keys:        fmt.Sprint(funcvalue.Code(r.keyOf)),
	}
	if r.indexers != nil {
		id.functions += " indexers" + functionsOf(*r.indexers)
	}
	if r.keyOf != nil && r.newObject != nil {
		for _, name := range [][2]string{{"", ""}, {"", "name"}, {"namespace", "name"}, {"other", "other.name"}} {
			id.keys += r.keyFor(name[0], name[1])
		}
	}
	return id
}

// keyFor describes what the key function returns for an object with nothing but
// a name.
func (r request) keyFor(namespace, name string) (described string) {
	defer func() {
		if p := recover(); p != nil {
			described = fmt.Sprint(p) // the function is for objects that have more
		}
	}()
	object := r.newObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetNamespace(namespace)
		accessor.SetName(name)
	}
	key, err := r.keyOf(object)
	return fmt.Sprintf(" %q %v", key, err)
}

// functionsOf describes functions by name.
func functionsOf[F any](functions map[string]F) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		fmt.Fprintf(&b, " %q %v", name, funcvalue.Of(functions[name]))
	}
	return b.String()
}

// comparableValue returns what a pointer points to, if that can be compared: a
// transformer is often made for each request, of the same parts.
func comparableValue(v any) any {
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() && p.Elem().Comparable() {
		return p.Elem().Interface()
	}
	return comparableOrUnique(v)
}

// declaration is what a function that makes empty objects says of them.
type declaration struct {
	goType reflect.Type
	// content is the kind of an object without a Go type, and whatever else the
	// object begins with.
	content string
}

func declarationOf(make func() runtime.Object) declaration {
	if make == nil {
		return declaration{}
	}
	object := make()
	return declaration{reflect.TypeOf(object), dump.ForHash(object)}
}
