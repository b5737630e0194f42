// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-watchcache/watchcache/cacher"
)

// Each GET, LIST and start of a watch is a span below its caller's, which says how it was
// answered and has nothing that may be a secret.
func TestReadsAreTraced(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	config := &genericapiserver.Config{RESTOptionsGetter: getterFor(startEtcdFor(t))}
	require.NoError(t, Install(config, cacher.Configure(func(c *cacher.Config) { c.LabelIndexes = []string{"app"} })))
	store := registryOf(t, config.RESTOptionsGetter)
	ctx := request.WithNamespace(request.NewDefaultContext(), "hidden-ns")
	for _, name := range []string{"hidden-one", "hidden-two"} {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "hidden-ns", Labels: map[string]string{"app": name}}}
		_, err := store.Create(ctx, pod, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		require.NoError(t, err)
	}
	get := func(name string) func(context.Context) {
		return func(ctx context.Context) { _, _ = store.Get(ctx, name, &metav1.GetOptions{}) }
	}
	list := func(opts internalversion.ListOptions) func(context.Context) {
		return func(ctx context.Context) { _, _ = store.List(ctx, &opts) }
	}
	two := labels.SelectorFromSet(labels.Set{"app": "hidden-two"})
	for i, tc := range []struct {
		call func(context.Context)
		span string
		want map[string]any
	}{
		{get("hidden-one"), "watchcache.Get", map[string]any{"decision": "consistent", "index": "", "returned": int64(1)}},
		{get("hidden-none"), "watchcache.Get", map[string]any{"decision": "consistent", "returned": int64(0), "error": "NotFound"}},
		{list(internalversion.ListOptions{LabelSelector: two}), "watchcache.List", map[string]any{"decision": "consistent", "index": "l:app", "evaluated": int64(1), "returned": int64(1)}},
		{list(internalversion.ListOptions{ResourceVersion: "0"}), "watchcache.List", map[string]any{"decision": "latest", "index": "", "evaluated": int64(2), "returned": int64(2)}},
		{func(ctx context.Context) {
			w, err := store.Watch(ctx, &internalversion.ListOptions{ResourceVersion: "0", LabelSelector: two})
			require.NoError(t, err)
			<-w.ResultChan()
			w.Stop()
		}, "watchcache.Watch", map[string]any{"decision": "state", "index": "l:app", "evaluated": int64(1), "returned": int64(1)}},
	} {
		exporter.Reset()
		called, span := tracer.Tracer("test").Start(ctx, "client")
		tc.call(called)
		span.End()
		var found tracetest.SpanStub
		require.Eventually(t, func() bool {
			spans := exporter.GetSpans()
			at := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == tc.span })
			if at >= 0 {
				found = spans[at]
			}
			return at >= 0
		}, time.Minute, time.Millisecond, "row %d: no span %s", i, tc.span)
		require.Equal(t, span.SpanContext().SpanID(), found.Parent.SpanID())
		got := map[string]any{}
		for _, a := range found.Attributes {
			got[strings.TrimPrefix(string(a.Key), "watchcache.")] = a.Value.AsInterface()
			require.NotContains(t, a.Value.String(), "hidden", "row %d: %s", i, a.Key)
		}
		require.Equal(t, "pods."+example.GroupName, got["resource"])
		require.Contains(t, got, "wait_seconds")
		for key, want := range tc.want {
			require.Equal(t, want, got[key], "row %d: %s", i, key)
		}
		require.Empty(t, found.Events)
		require.NotContains(t, found.Status.Description, "hidden")
	}
	require.NoError(t, tracer.Shutdown(context.Background()))
}
