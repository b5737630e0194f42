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
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
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
	resource           schema.GroupResource
	object, list       reflect.Type
	codec, transformer any
	egress             funcvalue.ID
	// described has everything else: strings, numbers, the identities of functions, and
	// the content of the empty object and list.
	described string
}

func (r request) identity() identity {
	config, transport := r.config, r.config.Transport
	id := identity{resource: config.GroupResource, codec: r.declaredCodec(), transformer: comparableValue(config.Transformer), egress: funcvalue.Of(transport.EgressLookup)}
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q %q %q ", r.prefix, slices.Sorted(slices.Values(transport.ServerList)),
		transport.CertFile, transport.KeyFile, transport.TrustedCAFile)
	fmt.Fprintf(&b, "%q %q %v %v %+v ", config.Type, config.Prefix, config.CompactionInterval, config.EventsHistoryWindow, config.LeaseManagerConfig)
	fmt.Fprint(&b, funcvalue.Of(r.attrs), functionsOf(r.triggers))
	if r.indexers != nil {
		fmt.Fprint(&b, " indexers", functionsOf(*r.indexers))
	}
	fmt.Fprint(&b, " ", funcvalue.Code(r.keyOf))
	if r.newList != nil {
		list := r.newList()
		id.list = reflect.TypeOf(list)
		fmt.Fprintf(&b, " %q", dump.ForHash(list))
	}
	if r.newObject != nil {
		object := r.newObject()
		id.object = reflect.TypeOf(object)
		fmt.Fprintf(&b, " %q", dump.ForHash(object))
		for _, name := range [][2]string{{"", ""}, {"", "name"}, {"namespace", "name"}, {"other", "other.name"}} {
			b.WriteString(r.tried(name[0], name[1], func(object runtime.Object) string {
				key, err := r.keyOf(object)
				return fmt.Sprintf(" %q %v", key, err)
			}))
		}
	}
	id.described = b.String()
	return id
}

// tried describes what a function does to an object with nothing but a name.
func (r request) tried(namespace, name string, try func(runtime.Object) string) (described string) {
	defer func() {
		if p := recover(); p != nil {
			described = fmt.Sprint(p) // the function is for objects that have more, or nil
		}
	}()
	object := r.newObject()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetNamespace(namespace)
		accessor.SetName(name)
	}
	return try(object)
}

// functionsOf describes functions by name.
func functionsOf[F any](functions map[string]F) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		fmt.Fprintf(&b, " %q %v", name, funcvalue.Of(functions[name]))
	}
	return b.String()
}

// versioningCodec is the type of the codecs that convert objects and set defaults.
var versioningCodec = reflect.TypeOf(versioning.NewDefaultingCodecForScheme(runtime.NewScheme(), nil, nil, nil, nil))

// declaredCodec returns equal values for codecs that read and write the objects alike.
//
// A codec's identifier is that of its encoder. It covers neither the version to decode
// to, nor the scheme or schema for conversion and defaults. For a Go type, declaredCodec
// tries the codec, if its type is k8s.io/apimachinery's. A codec of another type may depend
// on the content of objects and equals only itself. So does the codec of objects without a Go
// type: the result depends on their content, and a conversion may call a webhook. Kubernetes
// makes a codec for each version of a custom resource, and new ones when the definition changes.
func (r request) declaredCodec() any {
	codec := r.config.Codec
	if reflect.TypeOf(codec) != versioningCodec || r.newObject == nil {
		return comparableOrUnique(codec)
	}
	if _, ok := r.newObject().(runtime.Unstructured); ok {
		return comparableOrUnique(codec)
	}
	encodes := func(object runtime.Object) string {
		encoded, err := runtime.Encode(codec, object)
		if err != nil {
			return err.Error()
		}
		into := r.newObject()
		_, _, intoErr := codec.Decode(encoded, nil, into)
		hub, hubErr := runtime.Decode(codec, encoded)
		return fmt.Sprintf("%q %s %v %T %s %v", encoded, dump.ForHash(into), intoErr, hub, dump.ForHash(hub), hubErr)
	}
	return fmt.Sprintf("%q %q %q", codec.Identifier(), r.tried("", "", encodes), r.tried("", "name", encodes))
}

// comparableValue dereferences a pointer to a comparable value: transformers are often
// made for each request, of the same parts.
func comparableValue(v any) any {
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() && p.Elem().Comparable() {
		return p.Elem().Interface()
	}
	return comparableOrUnique(v)
}

// comparableOrUnique returns v if it can be compared, and otherwise a value that
// is equal to nothing.
func comparableOrUnique(v any) any {
	if v != nil && !reflect.ValueOf(v).Comparable() {
		return new(byte)
	}
	return v
}
