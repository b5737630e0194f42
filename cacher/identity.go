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
	"k8s.io/utils/dump"

	"github.com/kube-watchcache/watchcache/internal/funcvalue"
)

// request holds the arguments of a registry's call of a decorator.
type request struct {
	config             *storagebackend.ConfigForResource
	prefix             string
	keyOf              func(runtime.Object) (string, error)
	newObject, newList func() runtime.Object
	attrs              storage.AttrFunc
	triggers           storage.IndexerFuncs
	indexers           *cache.Indexers
}

// identity identifies requests that one cache can serve: the same objects under the
// same keys of the same servers, read, written and described alike. Values that can't be
// compared count as different.
//
// A server that makes a store for each served version makes two requests that differ in a
// few addresses only. So these count as equal:
//   - objects of one Go type;
//   - their codecs, if they have one identifier and do the same to an object
//     (declaredCodec);
//   - key functions with the same code and results, since a registry makes one for each
//     store.
//
// Other functions must be one value, and so must the codec of objects without a Go type,
// whose hub version and schema it hides.
type identity struct {
	resource     schema.GroupResource
	prefix       string
	servers      string
	egress       funcvalue.ID
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

// keyFor describes the key function's result for an object with nothing but a name.
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

// comparableValue dereferences a pointer to a comparable value: transformers are often
// made for each request, of the same parts.
func comparableValue(v any) any {
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() && p.Elem().Comparable() {
		return p.Elem().Interface()
	}
	return comparableOrUnique(v)
}

// declaration describes the objects that a constructor of empty objects makes.
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

// codecAnswers identifies a codec by its behaviour: its identifier, and the results of
// encoding an empty and a named object and decoding them into the same type and into
// the hub version.
type codecAnswers struct {
	id           runtime.Identifier
	empty, named string
}

// declaredCodec returns equal values for codecs that read and write the objects of
// newObject alike.
//
// A codec's identifier is that of its encoder. It covers neither the version to decode
// to, nor the scheme or schema for conversion and defaults. For a Go type, declaredCodec
// tries the codec. Without a Go type the result depends on an object's content, and a
// conversion may call a webhook: such a codec equals only itself. Kubernetes makes a
// codec for each version of a custom resource, and new ones when the definition changes.
func declaredCodec(codec runtime.Codec, newObject func() runtime.Object) any {
	if codec == nil || newObject == nil {
		return comparableOrUnique(codec)
	}
	if _, ok := newObject().(runtime.Unstructured); ok {
		return comparableOrUnique(codec)
	}
	return codecAnswers{codec.Identifier(), answersOf(codec, newObject, ""), answersOf(codec, newObject, "name")}
}

func answersOf(codec runtime.Codec, newObject func() runtime.Object, name string) (described string) {
	defer func() {
		if p := recover(); p != nil {
			described = fmt.Sprint(p) // the codec is for objects that have more
		}
	}()
	object := newObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetName(name)
	}
	encoded, err := runtime.Encode(codec, object)
	if err != nil {
		return err.Error()
	}
	into := newObject()
	_, _, intoErr := codec.Decode(encoded, nil, into)
	hub, hubErr := runtime.Decode(codec, encoded)
	return fmt.Sprintf("%q %s %v %T %s %v", encoded, dump.ForHash(into), intoErr, hub, dump.ForHash(hub), hubErr)
}

// comparableOrUnique returns v if it can be compared, and otherwise a value that
// is equal to nothing.
func comparableOrUnique(v any) any {
	if v != nil && !reflect.ValueOf(v).Comparable() {
		return new(byte)
	}
	return v
}
