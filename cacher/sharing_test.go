// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
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

// askedFor asks for pods, with functions and a codec that are made for each call,
// as those of a registry are.
func askedFor(change func(*asked)) asked {
	a := asked{
		config:    storagebackend.NewDefaultConfig("/registry", poddata.Codec()).ForResource(poddata.Resource),
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
	return decorate(a.config, a.prefix, a.keyOf, a.newObject, a.newList, a.attrs, a.triggers, a.indexers)
}

// rawStores opens stores in memory and counts them.
type rawStores struct{ opened, destroyed atomic.Int64 }

func (r *rawStores) open(_ *storagebackend.ConfigForResource, _, _ func() runtime.Object, prefix string) (storage.Interface, factory.DestroyFunc, error) {
	r.opened.Add(1)
	return memstore.New(prefix, poddata.New), func() { r.destroyed.Add(1) }, nil
}

// Two requests for the same share one cache, which ends with its last user.
func TestDecoratorShares(t *testing.T) {
	raw := &rawStores{}
	decorate := cacher.Decorator(cacher.WithRawStorage(raw.open))
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
	decorate := cacher.Decorator(cacher.WithRawStorage(raw.open))
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 20 {
				_, destroy, err := askedFor(nil).of(decorate)
				if !assert.NoError(t, err) {
					return
				}
				defer destroy()
			}
		})
	}
	all.Wait()
	require.Equal(t, raw.opened.Load(), raw.destroyed.Load())

	stays, destroy, err := askedFor(nil).of(decorate)
	require.NoError(t, err)
	before := raw.opened.Load()
	for range 16 {
		all.Go(func() {
			got, destroy, err := askedFor(nil).of(decorate)
			if !assert.NoError(t, err) || !assert.True(t, got == stays, "the raw storage is not shared: %v", got) {
				return
			}
			destroy()
		})
	}
	all.Wait()
	require.Equal(t, before, raw.opened.Load())
	destroy()
}

// Requests that differ in anything that the cache serves, or stores, do not
// share one.
func TestDecoratorTellsApart(t *testing.T) {
	for name, change := range map[string]func(*asked){
		"resource":  func(a *asked) { a.config.GroupResource = schema.GroupResource{Resource: "carp"} },
		"prefix":    func(a *asked) { a.prefix = "/pods/a/" },
		"servers":   func(a *asked) { a.config.Transport.ServerList = []string{"http://a:2379"} },
		"client":    func(a *asked) { a.config.Transport.CertFile = "other" },
		"root":      func(a *asked) { a.config.Prefix = "/elsewhere" },
		"window":    func(a *asked) { a.config.EventsHistoryWindow++ },
		"codec":     func(a *asked) { a.config.Codec = poddata.JSONCodec() },
		"encrypted": func(a *asked) { a.config.Transformer = &prefixing{prefix: "x"} },
		"keys": func(a *asked) {
			a.keyOf = func(o runtime.Object) (string, error) { return poddata.Key(o) }
		},
		"attributes": func(a *asked) {
			a.attrs = func(o runtime.Object) (labels.Set, fields.Set, error) { return poddata.Attrs(o) }
		},
		"a trigger":       func(a *asked) { a.triggers = nil },
		"an index":        func(a *asked) { a.indexers = &cache.Indexers{} },
		"no indexes":      func(a *asked) { a.indexers = nil },
		"another trigger": func(a *asked) { a.triggers["spec.nodeName"] = func(runtime.Object) string { return "" } },
	} {
		t.Run(name, func(t *testing.T) {
			decorate := cacher.Decorator(cacher.WithRawStorage((&rawStores{}).open))
			first, destroyFirst, err := askedFor(nil).of(decorate)
			require.NoError(t, err)
			defer destroyFirst()
			second, destroySecond, err := askedFor(change).of(decorate)
			require.NoError(t, err)
			defer destroySecond()
			require.NotSame(t, first, second)
		})
	}
}

// prefixing is a transformer as servers make them: again for each request.
type prefixing struct {
	value.Transformer
	prefix string
}

// A transformer that is made again of the same parts is the same.
func TestDecoratorSharesTransformers(t *testing.T) {
	decorate := cacher.Decorator(cacher.WithRawStorage((&rawStores{}).open))
	inner := identity.NewEncryptCheckTransformer()
	encrypted := func(a *asked) { a.config.Transformer = &prefixing{inner, "x"} }
	first, destroyFirst, err := askedFor(encrypted).of(decorate)
	require.NoError(t, err)
	defer destroyFirst()
	second, destroySecond, err := askedFor(encrypted).of(decorate)
	require.NoError(t, err)
	defer destroySecond()
	require.Same(t, first, second)
}

// A resource that is not selected is not cached, and its storage is closed
// once.
func TestDecoratorSelects(t *testing.T) {
	raw := &rawStores{}
	decorate := cacher.Decorator(cacher.WithRawStorage(raw.open), cacher.Except(poddata.Resource))
	got, destroy, err := askedFor(nil).of(decorate)
	require.NoError(t, err)
	require.IsType(t, &memstore.Store{}, got)
	destroy()
	destroy()
	require.EqualValues(t, 1, raw.destroyed.Load())

	_, _, err = askedFor(nil).of(cacher.Decorator(cacher.Only()))
	require.ErrorContains(t, err, "cacher.Only names no resource")
	broken := errors.New("no storage today")
	_, _, err = askedFor(nil).of(cacher.Decorator(cacher.WithRawStorage(
		func(*storagebackend.ConfigForResource, func() runtime.Object, func() runtime.Object, string) (storage.Interface, factory.DestroyFunc, error) {
			return nil, nil, broken
		})))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "the storage of pods")
}

// Two closures of one place in the source are other functions: nobody can tell
// what they have captured. One closure is itself.
func TestDecoratorTellsClosuresApart(t *testing.T) {
	attrs := func(node string) storage.AttrFunc {
		return func(o runtime.Object) (labels.Set, fields.Set, error) {
			return nil, fields.Set{"mine": fmt.Sprint(o.(*example.Pod).Spec.NodeName == node)}, nil
		}
	}
	trigger := func(node string) storage.IndexerFunc {
		return func(o runtime.Object) string { return fmt.Sprint(o.(*example.Pod).Spec.NodeName == node) }
	}
	index := func(node string) cache.IndexFunc {
		return func(o any) ([]string, error) { return []string{node}, nil }
	}
	for name, use := range map[string]func() func(*asked){
		"attributes": func() func(*asked) {
			f := attrs("one")
			return func(a *asked) { a.attrs = f }
		},
		"a trigger": func() func(*asked) {
			f := trigger("one")
			return func(a *asked) { a.triggers["spec.nodeName"] = f }
		},
		"an index": func() func(*asked) {
			f := index("one")
			return func(a *asked) { a.indexers = &cache.Indexers{"f:spec.nodeName": f} }
		},
		"a way to servers": func() func(*asked) {
			node := new(string)
			f := func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return nil, errors.New(*node) }
			return func(a *asked) { a.config.Transport.EgressLookup = f }
		},
	} {
		t.Run(name, func(t *testing.T) {
			decorate := cacher.Decorator(cacher.WithRawStorage((&rawStores{}).open))
			one, other := use(), use()
			var got []storage.Interface
			for _, change := range []func(*asked){one, one, other} {
				opened, destroy, err := askedFor(change).of(decorate)
				require.NoError(t, err)
				defer destroy()
				got = append(got, opened)
			}
			require.Same(t, got[0], got[1])
			require.NotSame(t, got[0], got[2])
		})
	}
}

// A registry makes a key function for each store. They are told apart by what
// they say.
func TestDecoratorAsksKeyFunctions(t *testing.T) {
	decorate := cacher.Decorator(cacher.WithRawStorage((&rawStores{}).open))
	stores := map[string]storage.Interface{}
	for _, suffix := range []string{"", "-x", ""} {
		got, destroy, err := askedFor(func(a *asked) {
			a.keyOf = func(o runtime.Object) (string, error) {
				key, err := poddata.Key(o)
				return key + suffix, err
			}
		}).of(decorate)
		require.NoError(t, err)
		defer destroy()
		if before := stores[suffix]; before != nil {
			require.Same(t, before, got)
		}
		stores[suffix] = got
	}
	require.NotSame(t, stores[""], stores["-x"])
}

// Codecs of one identifier that make other objects of the same bytes are told
// apart: an identifier says only how objects are written.
func TestDecoratorAsksCodecs(t *testing.T) {
	decorate := cacher.Decorator(cacher.WithRawStorage((&rawStores{}).open))
	defaulting := poddata.Scheme()
	defaulting.AddTypeDefaultingFunc(&examplev1.Pod{}, func(o any) { o.(*examplev1.Pod).Spec.NodeName = "default" })
	codecs := map[string]runtime.Codec{}
	for name, scheme := range map[string]*runtime.Scheme{"plain": poddata.Scheme(), "like plain": poddata.Scheme(), "defaulting": defaulting} {
		codecs[name] = serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion)
	}
	info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(defaulting).SupportedMediaTypes(), runtime.ContentTypeJSON)
	codecs["another hub"] = serializer.NewCodecFactory(poddata.Scheme()).CodecForVersions(info.Serializer, info.Serializer,
		schema.GroupVersions{examplev1.SchemeGroupVersion}, examplev1.SchemeGroupVersion)
	stores := map[string]storage.Interface{}
	for name, codec := range codecs {
		require.Equal(t, codecs["plain"].Identifier(), codec.Identifier())
		got, destroy, err := askedFor(func(a *asked) { a.config.Codec = codec }).of(decorate)
		require.NoError(t, err)
		defer destroy()
		stores[name] = got
	}
	require.Same(t, stores["plain"], stores["like plain"])
	require.NotSame(t, stores["plain"], stores["defaulting"])
	require.NotSame(t, stores["plain"], stores["another hub"])
}

// Objects without a Go type are shared by kind of object, kind of list, and
// codec, which alone knows the hub version and the schema.
func TestDecoratorTellsUnstructuredApart(t *testing.T) {
	codec := func(version string) runtime.Codec {
		scheme := runtime.NewScheme()
		json := unstructured.UnstructuredJSONScheme
		return versioning.NewCodec(json, json, scheme, scheme, scheme, nil,
			schema.GroupVersions{{Group: "example.com", Version: "v1"}, {Group: "example.com", Version: "v2"}},
			schema.GroupVersion{Group: "example.com", Version: version}, "test")
	}
	v1 := codec("v1")
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	widgets := func(object, list schema.GroupVersionKind, codec runtime.Codec) func(*asked) {
		return func(a *asked) {
			a.config.Codec = codec
			a.newObject = func() runtime.Object {
				o := &unstructured.Unstructured{}
				o.SetGroupVersionKind(object)
				return o
			}
			a.newList = func() runtime.Object {
				l := &unstructured.UnstructuredList{}
				l.SetGroupVersionKind(list)
				return l
			}
			a.attrs, a.triggers, a.indexers = storage.DefaultNamespaceScopedAttr, nil, nil
		}
	}
	decorate := cacher.Decorator(cacher.WithRawStorage((&rawStores{}).open))
	first, destroy, err := askedFor(widgets(kind, kind.GroupVersion().WithKind("WidgetList"), v1)).of(decorate)
	require.NoError(t, err)
	defer destroy()
	for _, test := range []struct {
		name   string
		change func(*asked)
		same   bool
	}{
		{"the same", widgets(kind, kind.GroupVersion().WithKind("WidgetList"), v1), true},
		{"object", widgets(kind.GroupKind().WithVersion("v2"), kind.GroupVersion().WithKind("WidgetList"), v1), false},
		{"list", widgets(kind, kind.GroupVersion().WithKind("Widgets"), v1), false},
		{"hub", widgets(kind, kind.GroupVersion().WithKind("WidgetList"), codec("v2")), false},
		{"schema", widgets(kind, kind.GroupVersion().WithKind("WidgetList"), codec("v1")), false},
	} {
		got, destroy, err := askedFor(test.change).of(decorate)
		require.NoError(t, err, test.name)
		defer destroy()
		require.Equal(t, test.same, first == got, test.name)
	}
}
