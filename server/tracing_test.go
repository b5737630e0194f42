// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/kube-watchcache/watchcache/cacher"
)

// serveTraced serves pods over HTTPS, by an API server's own handlers and filters,
// and traces every request.
func serveTraced(t *testing.T, tracer *sdktrace.TracerProvider) (*httptest.Server, *genericregistry.Store) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, example.AddToScheme(scheme))
	require.NoError(t, examplev1.AddToScheme(scheme))
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	options := genericoptions.NewEtcdOptions(startEtcdFor(t))
	config := &genericapiserver.Config{RESTOptionsGetter: options.CreateRESTOptionsGetter(
		&genericoptions.SimpleStorageFactory{StorageConfig: options.StorageConfig}, nil)}
	require.NoError(t, Install(config, cacher.Configure(func(c *cacher.Config) { c.LabelIndexes = []string{"app"} })))
	store := registryOf(t, config.RESTOptionsGetter)
	scope := &handlers.RequestScope{
		Namer:          handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor())},
		Serializer:     serializer.NewCodecFactory(scheme),
		ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater:        scheme, Convertor: scheme, Defaulter: scheme, Typer: scheme, UnsafeConvertor: scheme,
		TableConvertor:   store.TableConvertor,
		Resource:         examplev1.SchemeGroupVersion.WithResource("pods"),
		Kind:             examplev1.SchemeGroupVersion.WithKind("Pod"),
		HubGroupVersion:  example.SchemeGroupVersion,
		MetaGroupVersion: metav1.SchemeGroupVersion,
	}
	get, list := handlers.GetResource(store, scope), handlers.ListResource(store, store, scope, false, time.Minute)
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := request.RequestInfoFrom(r.Context())
		r = r.WithContext(request.WithNamespace(r.Context(), info.Namespace))
		if info.Verb == "get" {
			get(w, r)
			return
		}
		list(w, r)
	})
	handler = genericapifilters.WithTracing(handler, tracer)
	handler = genericapifilters.WithRequestInfo(handler, &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis")})
	served := httptest.NewTLSServer(handler)
	t.Cleanup(served.Close)
	return served, store
}

// Each GET, LIST and start of a watch over HTTPS is a span below that of its
// request, tells how it was answered, and tells nothing that may be a secret.
func TestReadsAreTraced(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	served, store := serveTraced(t, tracer)
	ctx := request.WithNamespace(request.NewDefaultContext(), "hidden-ns")
	for _, name := range []string{"hidden-one", "hidden-two"} {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "hidden-ns", Labels: map[string]string{"app": name}}}
		_, err := store.Create(ctx, pod, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for _, tc := range []struct {
		path, span string
		want       map[string]any
	}{
		{"/hidden-one", "watchcache.Get", map[string]any{"decision": "consistent", "index": "", "returned": int64(1)}},
		{"/hidden-none", "watchcache.Get", map[string]any{"decision": "consistent", "returned": int64(0), "error": "NotFound"}},
		{"?labelSelector=app=hidden-two", "watchcache.List", map[string]any{"decision": "consistent", "index": "l:app", "evaluated": int64(1), "returned": int64(1)}},
		{"?resourceVersion=0", "watchcache.List", map[string]any{"decision": "latest", "index": "", "evaluated": int64(2), "returned": int64(2)}},
		{"?watch=true&resourceVersion=0&labelSelector=app=hidden-two&timeoutSeconds=1", "watchcache.Watch",
			map[string]any{"decision": "state", "index": "l:app", "evaluated": int64(1), "returned": int64(1)}},
	} {
		exporter.Reset()
		response, err := served.Client().Get(served.URL + "/apis/" + example.GroupName + "/v1/namespaces/hidden-ns/pods" + tc.path)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Contains(t, []int{http.StatusOK, http.StatusNotFound}, response.StatusCode, tc.path)

		var found tracetest.SpanStub
		require.Eventually(t, func() bool { // the request's span ends after the answer
			byID := map[string]tracetest.SpanStub{}
			for _, s := range exporter.GetSpans() {
				byID[s.SpanContext.SpanID().String()] = s
				if s.Name == tc.span {
					found = s
				}
			}
			above := found
			for above.Parent.IsValid() {
				above = byID[above.Parent.SpanID().String()]
			}
			return found.Name != "" && strings.HasPrefix(above.Name, "GET /apis/")
		}, time.Minute, 10*time.Millisecond, "no span %s below that of the request for %s", tc.span, tc.path)
		got := map[string]any{}
		for _, a := range found.Attributes {
			got[strings.TrimPrefix(string(a.Key), "watchcache.")] = a.Value.AsInterface()
			require.NotContains(t, a.Value.String(), "hidden", "%s: %s", tc.path, a.Key)
		}
		require.Equal(t, "pods."+example.GroupName, got["resource"])
		require.Contains(t, got, "wait_seconds")
		for key, want := range tc.want {
			require.Equal(t, want, got[key], "%s: %s", tc.path, key)
		}
		require.Empty(t, found.Events)
		require.NotContains(t, attributesOf(found), "hidden")
	}
	require.NoError(t, tracer.Shutdown(context.Background()))
}

func attributesOf(span tracetest.SpanStub) string {
	set := attribute.NewSet(span.Attributes...)
	return set.Encoded(attribute.DefaultEncoder()) + span.Status.Description
}
