// SPDX-License-Identifier: Apache-2.0

package cacher

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/funcvalue"
)

// identity identifies requests that one cache can serve: the same objects under the same
// keys of the same servers, read, written and described alike. Codecs and functions must
// be the same values, because nothing shows what they do (docs/decisions/0027).
//
// A registry makes some values again for each store of a resource, so these are equal:
//   - constructors of objects of one Go type and kind;
//   - transformers that are pointers to equal values;
//   - key functions with the same code that return the same key.
type identity struct {
	resource                  schema.GroupResource
	prefix                    string
	servers                   string
	certFile, keyFile, caFile string
	egress                    funcvalue.ID
	storageType, root         string
	compaction, window        time.Duration
	leases                    any
	codec, transformer        any
	object, list              kind
	keyCode                   uintptr
	key                       string
	attrs                     funcvalue.ID
	triggers, indexers        string
}

// kind is the type of an object, and its kind if the type has many.
type kind struct {
	goType reflect.Type
	gvk    schema.GroupVersionKind
}

func identityOf(r decoration.Request) identity {
	config := r.Config
	transport := config.Transport
	id := identity{
		resource: config.GroupResource, prefix: r.ResourcePrefix,
		servers:  fmt.Sprintf("%q", slices.Sorted(slices.Values(transport.ServerList))),
		certFile: transport.CertFile, keyFile: transport.KeyFile, caFile: transport.TrustedCAFile,
		egress: funcvalue.Of(transport.EgressLookup), storageType: config.Type, root: config.Prefix,
		compaction: config.CompactionInterval, window: config.EventsHistoryWindow, leases: config.LeaseManagerConfig,
		codec: comparableOrUnique(config.Codec), transformer: comparableValue(config.Transformer),
		object: kindOf(r.NewFunc), list: kindOf(r.NewListFunc),
		keyCode: funcvalue.Code(r.KeyFunc), key: sampleKey(r),
		attrs: funcvalue.Of(r.GetAttrsFunc), triggers: functionsOf(r.IndexerFuncs), indexers: "none",
	}
	if r.Indexers != nil {
		id.indexers = functionsOf(*r.Indexers)
	}
	return id
}

func kindOf(newObject func() runtime.Object) kind {
	if newObject == nil {
		return kind{}
	}
	object := newObject()
	return kind{reflect.TypeOf(object), object.GetObjectKind().GroupVersionKind()}
}

// sampleKey returns the key of an object with a namespace and a name. A key function that
// needs more of an object equals only itself.
func sampleKey(r decoration.Request) (key string) {
	if r.NewFunc == nil || r.KeyFunc == nil {
		return ""
	}
	defer func() {
		if recover() != nil {
			key = fmt.Sprint(funcvalue.Of(r.KeyFunc))
		}
	}()
	object := r.NewFunc()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetNamespace("namespace")
		accessor.SetName("name")
	}
	key, err := r.KeyFunc(object)
	return fmt.Sprintf("%q %v", key, err)
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

// comparableOrUnique returns v if it can be compared, and otherwise a value that
// equals nothing.
func comparableOrUnique(v any) any {
	if v != nil && !reflect.ValueOf(v).Comparable() {
		return new(byte)
	}
	return v
}
