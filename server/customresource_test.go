// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/internal/decoration"
)

var bears = schema.GroupResource{Group: "awesome.bears.com", Resource: "pandas"}

// customResource is one version of a custom resource, with the codec that the
// server's handler of custom resources makes for it, which decodes to that
// version and drops fields that the schema does not have, and with its own
// functions.
type customResource struct {
	version, storageVersion string
	known                   []string // fields of spec
}

func (r customResource) kind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: bears.Group, Version: r.version, Kind: "Panda"}
}

func (r customResource) New(schema.GroupVersionKind) (runtime.Object, error) {
	return &unstructured.Unstructured{}, nil
}

func (r customResource) ObjectKinds(o runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{o.GetObjectKind().GroupVersionKind()}, false, nil
}

func (r customResource) Recognizes(schema.GroupVersionKind) bool { return true }

// Default drops the fields that the schema does not have.
func (r customResource) Default(o runtime.Object) {
	spec, _, _ := unstructured.NestedMap(o.(*unstructured.Unstructured).Object, "spec")
	kept := map[string]any{}
	for _, field := range r.known {
		if v, ok := spec[field]; ok {
			kept[field] = v
		}
	}
	o.(*unstructured.Unstructured).Object["spec"] = kept
}

// Convert sets the version, as for a custom resource without a webhook.
func (r customResource) Convert(in, out, context any) error {
	converted, err := r.ConvertToVersion(in.(runtime.Object), context.(runtime.GroupVersioner))
	if err == nil {
		out.(*unstructured.Unstructured).Object = converted.(*unstructured.Unstructured).Object
	}
	return err
}

func (r customResource) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	kind, _ := gv.KindForGroupVersionKinds([]schema.GroupVersionKind{in.GetObjectKind().GroupVersionKind()})
	out := in.DeepCopyObject()
	out.GetObjectKind().SetGroupVersionKind(kind)
	return out, nil
}

func (r customResource) ConvertFieldLabel(schema.GroupVersionKind, string, string) (string, string, error) {
	return "", "", nil
}

func (r customResource) attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	return storage.DefaultNamespaceScopedAttr(o)
}

func (r customResource) open(t *testing.T, getter generic.RESTOptionsGetter) (storage.Interface, factory.DestroyFunc) {
	t.Helper()
	options, err := getter.GetRESTOptions(bears, nil)
	require.NoError(t, err)
	options.StorageConfig.Codec = versioning.NewCodec(options.StorageConfig.Codec, options.StorageConfig.Codec, r, r, r, r,
		schema.GroupVersion{Group: bears.Group, Version: r.storageVersion}, r.kind().GroupVersion(), "crdRESTOptions")
	prefix := "/" + options.ResourcePrefix
	opened, destroy, err := decoration.Call(options.Decorator, decoration.Request{Config: options.StorageConfig, ResourcePrefix: prefix, KeyFunc: func(obj runtime.Object) (string, error) { return storage.NamespaceKeyFunc(prefix+"/", obj) }, NewFunc: func() runtime.Object {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(r.kind())
		return o
	}, NewListFunc: func() runtime.Object {
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(r.kind().GroupVersion().WithKind("PandaList"))
		return l
	}, GetAttrsFunc: r.attributes})
	require.NoError(t, err)
	require.IsType(t, &cacher.Cacher{}, opened)
	t.Cleanup(destroy)
	return opened, destroy
}

func (r customResource) panda(name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(r.kind())
	o.SetNamespace("ns")
	o.SetName(name)
	return o
}

func keyOfPanda(name string) string { return "/" + bears.Group + "/" + bears.Resource + "/ns/" + name }

func installedForCustomResources(t *testing.T, cacheOptions ...cacher.Option) generic.RESTOptionsGetter {
	t.Helper()
	etcd := startEtcd(t)
	etcd.Codec = unstructured.UnstructuredJSONScheme
	config := &genericapiserver.Config{RESTOptionsGetter: getterFor(etcd)}
	require.NoError(t, Install(config, cacheOptions...))
	return config.RESTOptionsGetter
}

// REGRESSIONS 88: each version of a custom resource is read as that version,
// whichever store is asked, and in every way.
func TestVersionsOfACustomResource(t *testing.T) {
	getter := installedForCustomResources(t)
	old := customResource{version: "v1", storageVersion: "v3", known: []string{"size"}}
	stored := customResource{version: "v3", storageVersion: "v3", known: []string{"size"}}
	ctx := context.Background()
	stores := map[string]storage.Interface{}
	for _, r := range []customResource{old, stored} {
		opened, _ := r.open(t, getter)
		require.NoError(t, opened.(*cacher.Cacher).Wait(ctx))
		stores[r.version] = opened
	}
	require.NoError(t, stores["v3"].Create(ctx, keyOfPanda("po"), stored.panda("po", map[string]any{"size": int64(3)}), nil, 0))

	for version, store := range stores {
		want := schema.GroupVersion{Group: bears.Group, Version: version}.String()
		for _, rv := range []string{"", "0"} {
			var got unstructured.Unstructured
			require.Eventually(t, func() bool {
				return store.Get(ctx, keyOfPanda("po"), storage.GetOptions{ResourceVersion: rv}, &got) == nil
			}, time.Minute, 10*time.Millisecond)
			require.Equal(t, want, got.GetAPIVersion(), "GET at %q", rv)
		}
		var list unstructured.UnstructuredList
		require.NoError(t, store.GetList(ctx, keyOfPanda(""), storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &list))
		require.Len(t, list.Items, 1)
		require.Equal(t, want, list.Items[0].GetAPIVersion())
		w, err := store.Watch(ctx, keyOfPanda(""), storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
		require.NoError(t, err)
		event := <-w.ResultChan()
		w.Stop()
		require.Equal(t, watch.Added, event.Type)
		require.Equal(t, want, event.Object.GetObjectKind().GroupVersionKind().GroupVersion().String())

		// A PATCH changes the object that it gets in the version of its request.
		require.NoError(t, store.GuaranteedUpdate(ctx, keyOfPanda("po"), &unstructured.Unstructured{}, false, nil,
			func(current runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
				require.Equal(t, want, current.GetObjectKind().GroupVersionKind().GroupVersion().String())
				changed := current.DeepCopyObject().(*unstructured.Unstructured)
				changed.SetLabels(map[string]string{"patched-as": version})
				return changed, nil, nil
			}, nil))
	}
}

// REGRESSIONS 88: the new schema of a custom resource is that of the store made
// for it, while the old store still drains.
func TestChangedSchemaOfACustomResource(t *testing.T) {
	getter := installedForCustomResources(t)
	before := customResource{version: "v1", storageVersion: "v1", known: []string{"size"}}
	after := customResource{version: "v1", storageVersion: "v1", known: []string{"size", "color"}}
	ctx := context.Background()
	old, destroyOld := before.open(t, getter)
	require.NoError(t, old.(*cacher.Cacher).Wait(ctx))
	changed, _ := after.open(t, getter)
	require.NotSame(t, old, changed)
	require.NoError(t, changed.(*cacher.Cacher).Wait(ctx))

	require.NoError(t, changed.Create(ctx, keyOfPanda("po"), after.panda("po", map[string]any{"size": int64(3), "color": "red"}), nil, 0))
	var got unstructured.Unstructured
	require.NoError(t, changed.Get(ctx, keyOfPanda("po"), storage.GetOptions{}, &got))
	require.Equal(t, map[string]any{"size": int64(3), "color": "red"}, got.Object["spec"])
	require.NoError(t, old.Get(ctx, keyOfPanda("po"), storage.GetOptions{}, &got))
	require.Equal(t, map[string]any{"size": int64(3)}, got.Object["spec"])

	destroyOld()
	require.NoError(t, changed.Get(ctx, keyOfPanda("po"), storage.GetOptions{}, &got), "the old one's end is not the new one's")
	w, err := changed.Watch(ctx, keyOfPanda(""), storage.ListOptions{ResourceVersion: got.GetResourceVersion(),
		Predicate: storage.Everything, Recursive: true})
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, changed.Delete(ctx, keyOfPanda("po"), &unstructured.Unstructured{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	require.Equal(t, watch.Deleted, (<-w.ResultChan()).Type)
}

// pandaSerializer is the serializer of the handler of custom resources: JSON,
// with the resource's own conversion.
type pandaSerializer struct{ r customResource }

var pandaJSON = json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{StreamingCollectionsEncoding: true})

func (pandaSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true, Serializer: pandaJSON,
		StreamSerializer: &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: pandaJSON, Framer: json.Framer}}}
}

func (s pandaSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return versioning.NewCodec(encoder, nil, s.r, s.r, s.r, s.r, gv, nil, "pandas")
}

func (pandaSerializer) DecoderToVersion(decoder runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return decoder
}
