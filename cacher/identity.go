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

// identity is equal for requests that one cache can serve, i.e. for the same objects and keys on
// the same servers, with identical codecs and functions, whose behavior we can't compare
// (docs/decisions/0027).
//
// Since registries recreate some values for each store of a resource, these are equal:
//   - constructors of objects of one Go type and kind;
//   - transformers that point to equal values;
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

// sampleKey returns the key of a sample object. A key function that panics on it equals only
// itself.
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

func functionsOf[F any](functions map[string]F) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		fmt.Fprintf(&b, " %q %v", name, funcvalue.Of(functions[name]))
	}
	return b.String()
}

// comparableValue dereferences pointers to comparable values, e.g. transformers, which registries
// often recreate.
func comparableValue(v any) any {
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() && p.Elem().Comparable() {
		return p.Elem().Interface()
	}
	return comparableOrUnique(v)
}

// comparableOrUnique returns v if it is comparable, otherwise a value that equals nothing.
func comparableOrUnique(v any) any {
	if v != nil && !reflect.ValueOf(v).Comparable() {
		return new(byte)
	}
	return v
}
