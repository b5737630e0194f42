// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

var widgetKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}

func newWidget() runtime.Object {
	w := &unstructured.Unstructured{}
	w.SetGroupVersionKind(widgetKind)
	return w
}

func newWidgets() runtime.Object {
	w := &unstructured.UnstructuredList{}
	w.SetGroupVersionKind(widgetKind.GroupVersion().WithKind("WidgetList"))
	return w
}

// widget returns an object without a Go type, of about the size that custom
// resources have.
func widget(name string) *unstructured.Unstructured {
	w := newWidget().(*unstructured.Unstructured)
	pod := poddata.Pod(name, "color=red")
	w.SetNamespace(pod.Namespace)
	w.SetName(pod.Name)
	w.SetLabels(pod.Labels)
	w.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Apply", APIVersion: "example.com/v1", FieldsType: "FieldsV1"}})
	var conditions []any
	for _, typ := range []string{"Ready", "Synced", "Progressing"} {
		conditions = append(conditions, map[string]any{"type": typ, "status": "True", "reason": "AsExpected", "message": "all is well", "observedGeneration": int64(1)})
	}
	w.Object["spec"] = map[string]any{"size": int64(3), "color": "red", "template": map[string]any{"image": "example.com/image:v1", "args": []any{"-v", "4"}}}
	w.Object["status"] = map[string]any{"conditions": conditions, "phase": "Running"}
	return w
}

// ofWidgets makes the configuration one of widgets, under the keys of pods.
func ofWidgets(c *cacher.Config) {
	c.NewFunc, c.NewListFunc, c.Codec = newWidget, newWidgets, unstructured.UnstructuredJSONScheme
	c.GetAttrsFunc = storage.DefaultNamespaceScopedAttr
}

func newWidgetStore(widgets ...*unstructured.Unstructured) *memstore.Store {
	store := memstore.New(poddata.Prefix, newWidget)
	for _, w := range widgets {
		store.Put(poddata.Prefix+w.GetNamespace()+"/"+w.GetName(), w)
	}
	return store
}

// widgetReads are the ways to read the one widget of a cache.
var widgetReads = map[string]struct {
	rv     string
	list   bool
	change func(*storage.ListOptions)
}{
	"GET": {rv: "0"}, "consistent GET": {},
	"LIST": {rv: "0", list: true}, "consistent LIST": {list: true}, "LIST at a version": {"2", true, exactly},
	"LIST selected": {"0", true, selecting("color=red", "")},
}

func readWidget(t *testing.T, c *cacher.Cacher, how string) *unstructured.Unstructured {
	t.Helper()
	read := widgetReads[how]
	if !read.list {
		w := &unstructured.Unstructured{}
		require.NoError(t, c.Get(testContext(t), "/pods/ns/one", storage.GetOptions{ResourceVersion: read.rv}, w))
		return w
	}
	opts := everything(read.rv)
	if read.change != nil {
		read.change(&opts)
	}
	list := &unstructured.UnstructuredList{}
	require.NoError(t, c.GetList(testContext(t), "/pods/", opts, list))
	require.Len(t, list.Items, 1)
	return &list.Items[0]
}

// Regression 26: an object without a Go type says of itself what version it
// is, and that survives the cache; and what a server does to the top level of
// what it has read, to serve it in another version for example, stays there. A consistent
// GET is private to the last.
func TestUnstructuredTopLevelIsTheCallers(t *testing.T) {
	want := widget("ns/one")
	want.SetResourceVersion("2")
	for how := range widgetReads {
		t.Run(how, func(t *testing.T) {
			c := start(t, newWidgetStore(widget("ns/one")), ofWidgets)
			for range 2 {
				got := readWidget(t, c, how)
				require.Equal(t, want.Object, got.Object)
				if how == "consistent GET" {
					require.NoError(t, unstructured.SetNestedField(got.Object, int64(7), "spec", "size"))
					require.NoError(t, unstructured.SetNestedField(got.Object, "blue", "metadata", "labels", "color"))
				}
				got.SetAPIVersion("example.com/v2")
				got.SetKind("Gadget")
				got.SetName("other")
				got.SetNamespace("")
				got.SetResourceVersion("9")
				got.SetLabels(map[string]string{"color": "blue"})
				got.SetAnnotations(map[string]string{"a": "b"})
				got.SetManagedFields(nil)
				got.Object["spec"] = "gone"
				delete(got.Object, "status")
			}
			for other := range widgetReads {
				assert.Equal(t, want.Object, readWidget(t, c, other).Object, other)
			}
		})
	}
}

// gadget is an unstructured object of a type of its own.
type gadget struct{ unstructured.Unstructured }

func (g *gadget) DeepCopyObject() runtime.Object { return &gadget{*g.DeepCopy()} }

type gadgetList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []gadget
}

func (l *gadgetList) DeepCopyObject() runtime.Object { return &gadgetList{} }

// Of unstructured objects of any other type, everything is the caller's.
func TestOtherUnstructuredIsPrivate(t *testing.T) {
	store := memstore.New(poddata.Prefix, func() runtime.Object { return &gadget{*newWidget().(*unstructured.Unstructured)} })
	store.Put("/pods/ns/one", &gadget{*widget("ns/one")})
	c := start(t, store, ofWidgets, func(c *cacher.Config) {
		c.NewFunc = func() runtime.Object { return &gadget{*newWidget().(*unstructured.Unstructured)} }
		c.NewListFunc = func() runtime.Object { return &gadgetList{} }
		c.Codec = gadgetCodec{unstructured.UnstructuredJSONScheme}
	})
	for range 2 {
		list := &gadgetList{}
		err := c.GetList(testContext(t), "/pods/", everything("0"), list)
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		got := &gadget{}
		require.NoError(t, c.Get(testContext(t), "/pods/ns/one", storage.GetOptions{ResourceVersion: "0"}, got))
		for _, g := range []*gadget{got, &list.Items[0]} {
			color := g.GetLabels()["color"]
			assert.Equal(t, "red", color, "the cache has %s", color)
			require.NoError(t, unstructured.SetNestedField(g.Object, "blue", "metadata", "labels", "color"))
		}
	}
}

// gadgetCodec decodes what gadgets look like stored.
type gadgetCodec struct{ runtime.Codec }

func (c gadgetCodec) Decode(data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if g, ok := into.(*gadget); ok {
		into = &g.Unstructured
	}
	return c.Codec.Decode(data, kind, into)
}
