// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// asked is what a registry asks a decorator for.
type asked struct {
	config    *storagebackend.ConfigForResource
	prefix    string
	keyOf     func(runtime.Object) (string, error)
	newObject func() runtime.Object
	newList   func() runtime.Object
	attrs     storage.AttrFunc
	triggers  storage.IndexerFuncs
	indexers  *cache.Indexers
}

// podCodec is that of all stores of a server.
var podCodec = poddata.Codec()

// askedFor asks for pods, with functions that are made for each call, as those of a
// registry are.
func askedFor(change func(*asked)) asked {
	a := asked{
		config:    storagebackend.NewDefaultConfig("/registry", podCodec).ForResource(poddata.Resource),
		prefix:    poddata.Prefix,
		keyOf:     func(o runtime.Object) (string, error) { return poddata.Key(o) },
		newObject: poddata.New, newList: poddata.NewList,
		attrs:    func(o runtime.Object) (labels.Set, fields.Set, error) { return poddata.Attrs(o) },
		triggers: storage.IndexerFuncs{"spec.nodeName": func(o runtime.Object) string { return o.(*example.Pod).Spec.NodeName }},
		indexers: &cache.Indexers{"f:spec.nodeName": func(o any) ([]string, error) { return []string{o.(*example.Pod).Spec.NodeName}, nil }},
	}
	a.config.Transport.ServerList = []string{"http://a:2379", "http://b:2379"}
	if change != nil {
		change(&a)
	}
	return a
}

func (a asked) of(decorate generic.StorageDecorator) (storage.Interface, factory.DestroyFunc, error) {
	return decoration.Call(decorate, decoration.Request{
		Config: a.config, ResourcePrefix: a.prefix, KeyFunc: a.keyOf, NewFunc: a.newObject, NewListFunc: a.newList,
		GetAttrsFunc: a.attrs, IndexerFuncs: a.triggers, Indexers: a.indexers,
	})
}

// rawStores opens stores in memory and counts them.
type rawStores struct{ opened, destroyed atomic.Int64 }

func (r *rawStores) open(q decoration.Request) (storage.Interface, factory.DestroyFunc, error) {
	r.opened.Add(1)
	return memstore.New(q.ResourcePrefix, poddata.New), func() { r.destroyed.Add(1) }, nil
}

// Two requests for the same share one cache, which ends with its last user.
func TestDecoratorShares(t *testing.T) {
	raw := &rawStores{}
	decorate := cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw(raw.open)))
	first, destroyFirst, err := askedFor(nil).of(decorate)
	require.NoError(t, err)
	second, destroySecond, err := askedFor(func(a *asked) {
		a.config.Transport.ServerList = []string{"http://b:2379", "http://a:2379"}
	}).of(decorate)
	require.NoError(t, err)
	require.Same(t, first, second)
	require.EqualValues(t, 1, raw.opened.Load())

	destroyFirst()
	destroyFirst()
	require.Zero(t, raw.destroyed.Load())
	require.NoError(t, second.(*cacher.Cacher).Wait(testContext(t)))
	destroySecond()
	require.EqualValues(t, 1, raw.destroyed.Load())
	require.Error(t, second.ReadinessCheck())

	third, destroyThird, err := askedFor(nil).of(decorate)
	require.NoError(t, err)
	defer destroyThird()
	require.NotSame(t, first, third)
}

// Concurrent creation leaves one cache (REGRESSIONS 45).
func TestDecoratorSharesConcurrently(t *testing.T) {
	raw := &rawStores{}
	decorate := cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw(raw.open)))
	concurrently := func(times int, expect func(storage.Interface)) {
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for range times {
					got, destroy, err := askedFor(nil).of(decorate)
					if !assert.NoError(t, err) {
						return
					}
					defer destroy()
					expect(got)
				}
			})
		}
		all.Wait()
	}
	concurrently(20, func(storage.Interface) {})
	require.Equal(t, raw.opened.Load(), raw.destroyed.Load())

	stays, destroy, err := askedFor(nil).of(decorate)
	require.NoError(t, err)
	defer destroy()
	before := raw.opened.Load()
	concurrently(1, func(got storage.Interface) { assert.True(t, got == stays, "the raw storage is not shared: %v", got) })
	require.Equal(t, before, raw.opened.Load())
}

// prefixing is a transformer as servers make them: again for each request.
type prefixing struct {
	value.Transformer
	prefix string
}

// sharing is two requests, and whether they share a cache.
type sharing struct {
	first, second func(*asked)
	shared        bool
}

// Regression 88: requests that differ in anything that the cache serves, or stores, do
// not share one. All others do.
func TestDecoratorTellsApart(t *testing.T) {
	tests := map[string]sharing{"nothing": {nil, nil, true}}
	for name, change := range map[string]func(*asked){
		"resource":   func(a *asked) { a.config.GroupResource = schema.GroupResource{Resource: "carp"} },
		"prefix":     func(a *asked) { a.prefix = "/pods/a/" },
		"servers":    func(a *asked) { a.config.Transport.ServerList = []string{"http://a:2379"} },
		"client":     func(a *asked) { a.config.Transport.CertFile = "other" },
		"root":       func(a *asked) { a.config.Prefix = "/elsewhere" },
		"window":     func(a *asked) { a.config.EventsHistoryWindow++ },
		"codec":      func(a *asked) { a.config.Codec = poddata.JSONCodec() },
		"encrypted":  func(a *asked) { a.config.Transformer = &prefixing{prefix: "x"} },
		"keys":       func(a *asked) { a.keyOf = func(o runtime.Object) (string, error) { return poddata.Key(o) } },
		"attributes": func(a *asked) { a.attrs = attributesOf("one") },
		"a trigger":  func(a *asked) { a.triggers = nil },
		"an index":   func(a *asked) { a.indexers = &cache.Indexers{} },
		"no indexes": func(a *asked) { a.indexers = nil },
		"another trigger": func(a *asked) {
			a.triggers["spec.nodeName"] = func(runtime.Object) string { return "" }
		},
	} {
		tests[name] = sharing{nil, change, false}
	}
	// A transformer that is made again of the same parts is the same.
	inner := identity.NewEncryptCheckTransformer()
	encrypted := func(a *asked) { a.config.Transformer = &prefixing{inner, "x"} }
	tests["the same transformer"] = sharing{encrypted, encrypted, true}
	// A registry makes a key function for each store. They are told apart by what they say.
	keys := func(suffix string) func(*asked) {
		return func(a *asked) {
			a.keyOf = func(o runtime.Object) (string, error) {
				key, err := poddata.Key(o)
				return key + suffix, err
			}
		}
	}
	with := map[string]func(*asked){}
	for _, suffix := range []string{"", "-x"} { // one place: the code is the same
		with[suffix] = keys(suffix)
	}
	tests["keys that are the same"], tests["keys that differ"] = sharing{with[""], with[""], true}, sharing{with[""], with["-x"], false}
	// One that needs more of an object equals only itself.
	needy := func() func(*asked) {
		f := func(o runtime.Object) (string, error) { return o.(*example.Pod).Labels["key"][1:], nil }
		return func(a *asked) { a.keyOf = f }
	}
	same := needy()
	tests["a needy key function"], tests["needy key functions"] = sharing{same, same, true}, sharing{same, needy(), false}
	for _, more := range []map[string]sharing{closures(), codecs(), unstructuredObjects()} {
		maps.Copy(tests, more)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			decorate := cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw((&rawStores{}).open)))
			var got []storage.Interface
			for _, change := range []func(*asked){test.first, test.second} {
				opened, destroy, err := askedFor(change).of(decorate)
				require.NoError(t, err)
				defer destroy()
				got = append(got, opened)
			}
			require.Equal(t, test.shared, got[0] == got[1])
		})
	}
}

func attributesOf(node string) storage.AttrFunc {
	return func(o runtime.Object) (labels.Set, fields.Set, error) {
		return nil, fields.Set{"mine": fmt.Sprint(o.(*example.Pod).Spec.NodeName == node)}, nil
	}
}

// closures: two closures of one place in the source are other functions, because nobody
// can tell what they have captured. One closure is itself.
func closures() map[string]sharing {
	tests := map[string]sharing{}
	for name, use := range map[string]func(node string) func(*asked){
		"attributes": func(node string) func(*asked) {
			f := attributesOf(node)
			return func(a *asked) { a.attrs = f }
		},
		"a trigger": func(node string) func(*asked) {
			f := func(o runtime.Object) string { return fmt.Sprint(o.(*example.Pod).Spec.NodeName == node) }
			return func(a *asked) { a.triggers["spec.nodeName"] = f }
		},
		"an index": func(node string) func(*asked) {
			f := func(any) ([]string, error) { return []string{node}, nil }
			return func(a *asked) { a.indexers = &cache.Indexers{"f:spec.nodeName": f} }
		},
		"a way to servers": func(node string) func(*asked) {
			f := func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return nil, errors.New(node) }
			return func(a *asked) { a.config.Transport.EgressLookup = f }
		},
	} {
		one := use("one")
		tests[name+" of one closure"], tests[name+" of two closures"] = sharing{one, one, true}, sharing{one, use("one"), false}
	}
	return tests
}

// codecs equal only themselves: an identifier says only how objects are written, and what
// a codec does may depend on an object (regression 190).
func codecs() map[string]sharing {
	codec := func(c runtime.Codec) func(*asked) { return func(a *asked) { a.config.Codec = c } }
	decorated := func(value string) runtime.Codec { return runtime.NewCodec(podCodec, decorating{podCodec, value}) }
	one := decorated("one")
	return map[string]sharing{
		"a codec made again":               {codec(podCodec), codec(poddata.Codec()), false},
		"a codec that decorates":           {codec(one), codec(one), true},
		"codecs that decorate in two ways": {codec(one), codec(decorated("two")), false},
		"a codec that can't be compared":   {codec(incomparable{Codec: podCodec}), codec(incomparable{Codec: podCodec}), false},
	}
}

// incomparable is a codec that Go can't compare.
type incomparable struct {
	runtime.Codec
	_ []string
}

// decorating decorates objects that have labels.
type decorating struct {
	runtime.Decoder
	value string
}

func (d decorating) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := d.Decoder.Decode(data, defaults, into)
	if pod, ok := object.(*example.Pod); ok && len(pod.Labels) > 0 {
		pod.Labels["decorated"] = d.value
	}
	return object, kind, err
}

// unstructuredObjects have no Go type, and are shared by kind of object, kind of list, and
// codec.
func unstructuredObjects() map[string]sharing {
	codec := func(version string) runtime.Codec {
		scheme := runtime.NewScheme()
		json := unstructured.UnstructuredJSONScheme
		return versioning.NewCodec(json, json, scheme, scheme, scheme, nil,
			schema.GroupVersions{{Group: "example.com", Version: "v1"}, {Group: "example.com", Version: "v2"}},
			schema.GroupVersion{Group: "example.com", Version: version}, "test")
	}
	of := func(version, list string, codec runtime.Codec) func(*asked) {
		return func(a *asked) {
			a.config.Codec = codec
			a.newObject = func() runtime.Object {
				o := &unstructured.Unstructured{}
				o.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Widget"})
				return o
			}
			a.newList = func() runtime.Object {
				l := &unstructured.UnstructuredList{}
				l.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: list})
				return l
			}
			a.attrs, a.triggers, a.indexers = storage.DefaultNamespaceScopedAttr, nil, nil
		}
	}
	v1 := codec("v1")
	first := of("v1", "WidgetList", v1)
	return map[string]sharing{
		"unstructured":        {first, of("v1", "WidgetList", v1), true},
		"unstructured object": {first, of("v2", "WidgetList", v1), false},
		"unstructured list":   {first, of("v1", "Widgets", v1), false},
		"unstructured hub":    {first, of("v1", "WidgetList", codec("v2")), false},
		"unstructured schema": {first, of("v1", "WidgetList", codec("v1")), false},
	}
}

// A resource that is not selected is not cached, and its storage is closed
// once.
func TestDecoratorSelects(t *testing.T) {
	raw := &rawStores{}
	decorate := cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw(raw.open)), cacher.Except(poddata.Resource))
	got, destroy, err := askedFor(nil).of(decorate)
	require.NoError(t, err)
	require.IsType(t, &memstore.Store{}, got)
	destroy()
	destroy()
	require.EqualValues(t, 1, raw.destroyed.Load())

	_, _, err = askedFor(nil).of(cacher.Decorator(cacher.Only()))
	require.ErrorContains(t, err, "cacher.Only names no resource")
	broken := errors.New("no storage today")
	_, _, err = askedFor(nil).of(cacher.Decorator(cacher.WithRawStorage(decoration.AsRaw(
		func(decoration.Request) (storage.Interface, factory.DestroyFunc, error) { return nil, nil, broken }))))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "the storage of pods")
}
