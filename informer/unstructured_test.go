// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/informer"
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

func widget(name string) *unstructured.Unstructured {
	w := newWidget().(*unstructured.Unstructured)
	w.SetNamespace("a")
	w.SetName(name)
	w.Object["spec"] = map[string]any{"parts": []any{map[string]any{"color": "red"}}}
	return w
}

// color reads, and paint writes, the innermost field of a widget.
func color(t *testing.T, w *unstructured.Unstructured) string {
	t.Helper()
	parts, _, err := unstructured.NestedSlice(w.Object, "spec", "parts")
	require.NoError(t, err)
	require.Len(t, parts, 1)
	return parts[0].(map[string]any)["color"].(string)
}

func paint(w *unstructured.Unstructured) {
	w.Object["spec"].(map[string]any)["parts"].([]any)[0].(map[string]any)["color"] = "blue"
}

// Objects without a Go type are deep copies like others, and have their kind.
func TestUnstructured(t *testing.T) {
	for _, lists := range []bool{false, true} {
		t.Run(fmt.Sprintf("lists: %v", lists), func(t *testing.T) {
			store := memstore.New(poddata.Prefix, newWidget)
			store.Put("/pods/a/one", widget("one"))
			c := start(t, store, func(config *cacher.Config) {
				config.NewFunc, config.NewListFunc, config.Codec = newWidget, newWidgets, unstructured.UnstructuredJSONScheme
				config.GetAttrsFunc = storage.DefaultNamespaceScopedAttr
			})
			l := &counted{ListWatch: informer.ListerWatcher(c, informer.InNamespace("a")), lists: lists}
			i := cache.NewSharedIndexInformer(l, newWidget(), 0, cache.Indexers{})
			defer run(t, i.RunWithContext)()
			until(t, "the informer is synced", i.HasSynced)
			store.Put("/pods/a/two", widget("two"))
			until(t, "it has both", func() bool { return stored(i.GetStore()) == "a/one@2 a/two@3" })
			for _, object := range i.GetStore().List() {
				w := object.(*unstructured.Unstructured)
				assert.Equal(t, widgetKind, w.GroupVersionKind(), w.GetName())
				paint(w)
			}
			object, err := l.ListWithContext(t.Context(), metav1.ListOptions{FieldSelector: "metadata.namespace=a"})
			require.NoError(t, err)
			widgets := object.(*unstructured.UnstructuredList)
			assert.Equal(t, "WidgetList", widgets.GroupVersionKind().Kind)
			assert.Len(t, widgets.Items, 2)
			for n := range widgets.Items {
				assert.Equal(t, "red", color(t, &widgets.Items[n]), "the color that the cache has of %s", widgets.Items[n].GetName())
				paint(&widgets.Items[n])
			}
			again := startWatch(t, l.ListWatch, streaming)
			for range 2 {
				w := again.next().Object.(*unstructured.Unstructured)
				assert.Equal(t, "red", color(t, w), "the color that the cache has of %s", w.GetName())
			}
			end := again.next().Object.(*unstructured.Unstructured)
			assert.Equal(t, widgetKind, end.GroupVersionKind(), "the bookmark is %v", end)
			assert.Equal(t, "true", end.GetAnnotations()[metav1.InitialEventsAnnotationKey], "the bookmark is %v", end)
		})
	}
}
