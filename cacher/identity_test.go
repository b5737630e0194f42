// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"errors"
	"fmt"
	"testing"

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
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

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
