// SPDX-License-Identifier: Apache-2.0

package customresources

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

const group = "zoo.example.com"

// conversionWebhook converts between versions as the definition says: v2 has the size in
// centimetres.
func conversionWebhook(t *testing.T, asked *atomic.Int64) *apiextensionsv1.CustomResourceConversion {
	t.Helper()
	served := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			var o unstructured.Unstructured
			if err := json.Unmarshal(raw.Raw, &o.Object); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			size, _, _ := unstructured.NestedInt64(o.Object, "spec", "size")
			if size *= 100; strings.HasSuffix(review.Request.DesiredAPIVersion, "v1") {
				size /= 100 * 100
			}
			_ = unstructured.SetNestedField(o.Object, size, "spec", "size")
			o.SetAPIVersion(review.Request.DesiredAPIVersion)
			response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: &o})
		}
		review.Request, review.Response = nil, response
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(served.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: served.Certificate().Raw})
	return &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &served.URL, CABundle: authority},
		ConversionReviewVersions: []string{"v1"},
	}}
}

// definition is a resource in two versions: v1, which is stored, has columns and a
// default, v2 lacks a field, which is pruned.
func definition(plural, kind string, conversion *apiextensionsv1.CustomResourceConversion) *apiextensionsv1.CustomResourceDefinition {
	properties := func(fields map[string]apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceValidation {
		return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: fields}},
		}}
	}
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped, Conversion: conversion,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: properties(map[string]apiextensionsv1.JSONSchemaProps{
					"size": {Type: "integer"}, "text": text, "old": text,
					"food": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"<bamboo>"`)}},
				}),
				SelectableFields:         []apiextensionsv1.SelectableField{{JSONPath: ".spec.food"}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}},
			}, {
				Name: "v2", Served: true,
				// Without columns of its own it would have an age, which depends on the time.
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Home", Type: "string", JSONPath: ".spec.home"}},
				Schema: properties(map[string]apiextensionsv1.JSONSchemaProps{
					"size": {Type: "integer"}, "text": text,
					"home": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"here"`)}},
				}),
			}},
		},
	}
}

// fixture is two servers over one etcd, and the resources that they serve.
type fixture struct {
	shipped, cached *server
	client          dynamic.Interface
	etcd            []string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	etcd, err := embedded.Start(t.Context(), embedded.Config{Dir: filepath.Join(t.TempDir(), "etcd"), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	f := &fixture{etcd: etcd.Endpoints()}
	f.shipped, f.cached = serve(t, f.etcd, false), serve(t, f.etcd, true)
	f.client, err = dynamic.NewForConfig(f.shipped.config)
	require.NoError(t, err)
	return f
}

func (f *fixture) define(t testing.TB, d *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	client, err := clientset.NewForConfig(f.shipped.config)
	require.NoError(t, err)
	_, err = client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), d, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, s := range []*server{f.shipped, f.cached} {
		for _, v := range d.Spec.Versions {
			f.await(t, s, root(v.Name)+d.Spec.Names.Plural)
		}
	}
}

// await waits until a server serves a path.
func (f *fixture) await(t testing.TB, s *server, path string) {
	t.Helper()
	require.Eventually(t, func() bool { return s.ask(t, path, "application/json", false).status == http.StatusOK }, patience, patience/1000)
}

func root(version string) string { return "/apis/" + group + "/" + version + "/" }

// put creates an object, or replaces it.
func (f *fixture) put(t testing.TB, plural, kind, namespace, name string, change int) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"size": int64(change), "text": strings.Repeat("0123456789<>&é ", 300), "old": "not in v2",
	}}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetLabels(map[string]string{"app": []string{"a", "b"}[len(name)%2]})
	o.SetAnnotations(map[string]string{"note": strings.Repeat("0123456789<>&é \"object\":null}", 120)})
	objects := f.client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}).Namespace(namespace)
	if change > 0 {
		was, err := objects.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		o.SetResourceVersion(was.GetResourceVersion())
		_, err = objects.Update(t.Context(), o, metav1.UpdateOptions{})
		require.NoError(t, err)
		return
	}
	_, err := objects.Create(t.Context(), o, metav1.CreateOptions{})
	require.NoError(t, err)
}

// expectSame asks both servers and compares the answers. A list at version 0 is as
// old as the cache, so that both caches see all changes first.
func (f *fixture) expectSame(t *testing.T, path, accept string, compressed bool) answer {
	t.Helper()
	want := f.shipped.ask(t, path, accept, compressed)
	got := f.cached.ask(t, path, accept, compressed)
	what := fmt.Sprintf("%s as %q, gzip: %v", path, accept, compressed)
	require.Equal(t, want.status, got.status, "%s: %s", what, got.body)
	require.Equal(t, want.header, got.header, what)
	require.True(t, bytes.Equal(want.body, got.body), "%s: %.300q, and not %.300q", what, got.body, want.body)
	return got
}

// expectSamePages follows the continue tokens of each server. The caches name
// different versions in them, so that a page is compared up to its metadata.
func (f *fixture) expectSamePages(t *testing.T, path string, compressed bool) {
	t.Helper()
	for want, got := "", ""; ; {
		wantItems, wantMeta := page(t, f.shipped.ask(t, path+"&continue="+url.QueryEscape(want), asJSON, compressed))
		gotItems, gotMeta := page(t, f.cached.ask(t, path+"&continue="+url.QueryEscape(got), asJSON, compressed))
		require.True(t, bytes.Equal(wantItems, gotItems), "%s from %q: %.300q, and not %.300q", path, got, gotItems, wantItems)
		require.Equal(t, wantMeta.RemainingItemCount, gotMeta.RemainingItemCount, path)
		want, got = wantMeta.Continue, gotMeta.Continue
		require.Equal(t, want == "", got == "", path)
		if want == "" {
			return
		}
	}
}

// page takes a list apart.
func page(t *testing.T, a answer) (items []byte, m metav1.ListMeta) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	var list metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal(a.body, &list))
	end := bytes.LastIndex(a.body, []byte(`"metadata":`))
	require.Positive(t, end)
	return a.body[:end], list.ListMeta
}

const asJSON = "application/json"

// otherForms are what lists are asked for in beside JSON. keptForms are answered from
// kept bytes.
var (
	otherForms = append([]string{
		asTable, asTable + "beta1", asMetadata + "beta1",
		"application/yaml", "application/vnd.kubernetes.protobuf", "text/plain", "", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
		"application/yaml;as=Table;g=meta.k8s.io;v=v1", "application/yaml;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		"application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v2", asProtobufMetadata + "beta1",
		// The forms that client-go's typed clients, kubectl and the metadata client ask for.
		"application/vnd.kubernetes.protobuf,application/json",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
	}, keptForms...)
	keptForms = []string{asMetadata, asProtobufMetadata}
)

const (
	asMetadata         = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asProtobufMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asTable            = "application/json;as=Table;g=meta.k8s.io;v=v1"
)

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("x%d", i*i*i))
	}
	return all
}

// Every list of custom resources is the same to the byte as with the shipped
// cacher: in each format and version, of each scope, selector and page, compressed
// or not, as objects change, with and without a conversion webhook.
func TestListsAreTheSameToTheByte(t *testing.T) {
	f := newFixture(t)
	var converted atomic.Int64
	for _, c := range []struct {
		plural, kind string
		conversion   *apiextensionsv1.CustomResourceConversion
	}{
		{"pandas", "Panda", &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}},
		{"koalas", "Koala", conversionWebhook(t, &converted)},
	} {
		t.Run(c.plural, func(t *testing.T) {
			f.define(t, definition(c.plural, c.kind, c.conversion))
			for i, name := range names(40) {
				f.put(t, c.plural, c.kind, []string{"ns1", "ns2"}[i%2], name, 0)
			}
			for round := range 2 {
				for _, version := range []string{"v1", "v2"} {
					f.compare(t, version, c.plural, round)
				}
				f.put(t, c.plural, c.kind, "ns2", "x1", round+1)
				f.put(t, c.plural, c.kind, "ns1", fmt.Sprint("new", round), 0)
				require.NoError(t, f.client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: c.plural}).
					Namespace("ns1").Delete(t.Context(), names(40)[2*round+4], metav1.DeleteOptions{}))
			}
		})
	}
	require.Positive(t, converted.Load(), "the webhook was asked")
}

// compare asks for lists in every way.
func (f *fixture) compare(t *testing.T, version, plural string, round int) {
	t.Helper()
	all := root(version) + plural
	var list metav1.PartialObjectMetadataList
	// Consistent: the caches have all changes now.
	require.NoError(t, json.Unmarshal(f.expectSame(t, all, asJSON, false).body, &list))
	for _, scope := range []string{all, root(version) + "namespaces/ns1/" + plural, root(version) + "namespaces/none/" + plural} {
		for i, query := range []string{
			"", "resourceVersion=0", "resourceVersion=" + list.ResourceVersion, "resourceVersionMatch=Exact&resourceVersion=" + list.ResourceVersion,
			"labelSelector=app%3Da", "resourceVersion=0&labelSelector=app+in+(a,b)", "labelSelector=%21%21", "fieldSelector=metadata.name%3Dx27",
			"fieldSelector=spec.food%3D%3Cbamboo%3E", "pretty=true", "resourceVersion=0&pretty=1",
		} {
			f.expectSame(t, scope+"?"+query, asJSON, (i+round)%2 == 0)
			f.expectSame(t, scope+"?"+query, asJSON, (i+round)%2 == 1)
		}
		for _, accept := range otherForms {
			for _, query := range []string{"resourceVersion=0", "resourceVersion=0&labelSelector=app%3Da"} {
				f.expectSame(t, scope+"?"+query, accept, false)
				f.expectSame(t, scope+"?"+query, accept, true)
			}
		}
		for i, accept := range keptForms {
			query := []string{
				"", "resourceVersionMatch=Exact&resourceVersion=" + list.ResourceVersion, "resourceVersion=0&fieldSelector=spec.food%3D%3Cbamboo%3E",
				"resourceVersion=0&pretty=1", "resourceVersion=newest", "continue=AAAA",
			}[(2*i+round)%6]
			f.expectSame(t, scope+"?"+query, accept, false)
			f.expectSame(t, scope+"?"+query, accept, true)
		}
		for _, include := range []string{"Object", "None", "Metadata", "Nothing"} {
			for _, accept := range []string{asTable, asTable + "beta1", asMetadata} {
				f.expectSame(t, scope+"?resourceVersion=0&includeObject="+include, accept, false)
				f.expectSame(t, scope+"?resourceVersion=0&labelSelector=app%3Da&includeObject="+include, accept, true)
			}
		}
		f.expectSamePages(t, scope+"?limit=15", round%2 == 0)
		f.expectSamePages(t, scope+"?limit=7&labelSelector=app%3Da", round%2 == 1)
	}
	all += "?resourceVersion=0&limit=0"
	f.expectServedFromKeptBytes(t, all, asJSON, 1000)
	for _, accept := range keptForms {
		f.expectServedFromKeptBytes(t, all, accept, 1000)
	}
}

// expectServedFromKeptBytes asks for a list that was asked for before: the server's
// own handler writes it without items.
func (f *fixture) expectServedFromKeptBytes(t *testing.T, path, accept string, most int64) {
	t.Helper()
	for _, compressed := range []bool{false, true} {
		own := int64(math.MaxInt64)
		// Requests of the server to itself are counted, too.
		for range 5 {
			before := f.cached.encoded.Load()
			got := f.cached.ask(t, path, accept, compressed)
			require.Equal(t, http.StatusOK, got.status)
			require.Greater(t, len(got.body), 100_000)
			own = min(own, f.cached.encoded.Load()-before)
		}
		require.Less(t, own, most, "%s as %s, gzip: %v", path, accept, compressed)
	}
}
