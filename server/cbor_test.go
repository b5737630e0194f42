// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// serveCBOR serves LIST and WATCH of a store over HTTP, with an API server's own
// handler, as JSON and CBOR.
func serveCBOR(t *testing.T, scheme *runtime.Scheme, store *genericregistry.Store) *httptest.Server {
	t.Helper()
	scope := &handlers.RequestScope{
		Namer:          handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor())},
		Serializer:     serializer.NewCodecFactory(scheme, serializer.WithSerializer(cbor.NewSerializerInfo)),
		ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater:        scheme, Convertor: scheme, Defaulter: scheme, Typer: scheme, UnsafeConvertor: scheme,
		TableConvertor:   store.TableConvertor,
		Resource:         examplev1.SchemeGroupVersion.WithResource("pods"),
		Kind:             examplev1.SchemeGroupVersion.WithKind("Pod"),
		HubGroupVersion:  example.SchemeGroupVersion,
		MetaGroupVersion: metav1.SchemeGroupVersion,
	}
	handler := handlers.ListResource(store, store, scope, false, time.Minute)
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: example.GroupName, APIVersion: "v1", Namespace: "ns", Resource: "pods"}
		if r.URL.Query().Has("watch") {
			info.Verb = "watch"
		}
		handler(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
	}))
	t.Cleanup(served.Close)
	return served
}

// asCBOR returns the first data item of the answer to a query.
func asCBOR(t *testing.T, served *httptest.Server, query string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, served.URL+"/?"+query, nil)
	require.NoError(t, err)
	r.Header.Set("Accept", "application/cbor")
	answer, err := served.Client().Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	item := make([]byte, 1<<16)
	n, err := cbor.NewFramer().NewFrameReader(answer.Body).Read(item)
	if err != nil {
		require.ErrorIs(t, err, io.EOF)
	}
	require.Equal(t, http.StatusOK, answer.StatusCode, "%q", item[:n])
	return item[:n]
}

// REGRESSIONS 70: an API server that serves CBOR shuffles the keys of its maps,
// so that clients can't rely on their order. Two answers need not have the same
// bytes: lists, initial events and events that a watch resumes with, both the
// event and the object in it.
func TestShuffledEncodings(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, example.AddToScheme(scheme))
	require.NoError(t, examplev1.AddToScheme(scheme))
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	const answers = 40 // an order of two keys is the same in all of them once in 2^39 times
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, true)
	config := &genericapiserver.Config{RESTOptionsGetter: getterFor(startEtcd(t))}
	require.NoError(t, Install(config))
	store := registryOf(t, config.RESTOptionsGetter)
	served := serveCBOR(t, scheme, store)
	ctx := request.WithNamespace(request.NewDefaultContext(), "ns")
	before, err := store.List(ctx, &internalversion.ListOptions{})
	require.NoError(t, err)
	rv := before.(*example.PodList).ResourceVersion
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", Labels: map[string]string{"a": "1", "b": "2", "c": "3"}}}
	_, err = store.Create(ctx, pod, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	require.NoError(t, err)
	asCBOR(t, served, "resourceVersion=") // the cache has it now

	lists := map[string]bool{}
	for range answers {
		lists[string(asCBOR(t, served, "resourceVersion=0"))] = true
	}
	require.Greater(t, len(lists), 1, "lists")
	decoder := cbor.NewSerializer(scheme, scheme, cbor.Transcode(false))
	for name, query := range map[string]string{"initial events": "watch=true&resourceVersion=0", "replayed events": "watch=true&resourceVersion=" + rv} {
		events, objects := map[string]bool{}, map[string]bool{}
		for range answers {
			item := asCBOR(t, served, query)
			var event metav1.WatchEvent
			_, _, err := decoder.Decode(item, nil, &event)
			require.NoError(t, err)
			require.Equal(t, "ADDED", event.Type)
			objects[string(event.Object.Raw)] = true
			events[string(bytes.Replace(item, event.Object.Raw, nil, 1))] = true
		}
		require.Greater(t, len(objects), 1, name)
		require.Greater(t, len(events), 1, name)
	}
}
