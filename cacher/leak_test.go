// SPDX-License-Identifier: Apache-2.0

package cacher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/debug"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
)

// The marks of an object of another namespace: its name, and its content.
const (
	markedName    = "topsecret"
	markedContent = "hunter2"
)

// quoting are errors that quote the marked object, as decoders and transformers do.
var quoting = map[string]string{
	"json":      `"/pods/hidden/topsecret" can't be decoded: Object 'Kind' is missing in '{"data":{"password":"hunter2"}}'`,
	"a value":   `unable to transform key "/pods/hidden/topsecret": parsing time "hunter2" as "2006-01-02": hunter2 is no year`,
	"protobuf":  "/pods/hidden/topsecret: proto: wrong wireType in \x0a\x07hunter2",
	"backticks": "quantities must match: `hunter2` of /pods/hidden/topsecret",
	// An error of a decoder that quotes one of the connection.
	"connection": `decoding '{"password":"hunter2","note":"rpc error: code = Unavailable, connection refused"}' of /pods/hidden/topsecret`,
}

// REGRESSIONS 122 and 125: what one client's objects contain, and what they are
// called, reaches no other client: not in events, statuses, metrics, spans and the
// debug page. The log may have the name, but no content.
func TestNothingOfObjectsLeaves(t *testing.T) {
	none := func(*cacher.Config) {}
	put := func(store *memstore.Store) { put(store, poddata.Pod("hidden/"+markedName, "poison="+markedContent)) }
	for fault, tc := range map[string]struct {
		change func(failure error) func(*cacher.Config)
		break_ func(store *memstore.Store, failure error)
	}{
		"an object that can't be decoded": {nil, func(store *memstore.Store, failure error) {
			store.Corrupt(apierrors.NewInternalError(failure))
			put(store)
		}},
		"a list that fails": {nil, func(store *memstore.Store, failure error) {
			put(store)
			store.Fail("list", failure)
			store.Fail("watch", failure)
			store.BreakWatches(apierrors.NewResourceExpired("compacted: " + failure.Error()))
		}},
		"a watch that breaks": {nil, func(store *memstore.Store, failure error) {
			put(store)
			store.EndWatches(apierrors.NewInternalError(failure))
		}},
		"a version request": {nil, func(store *memstore.Store, failure error) {
			store.Fail("version", failure)
			store.Fail("keyversions", failure)
			store.Fail("progress", failure)
			put(store)
		}},
		"attributes": {func(failure error) func(*cacher.Config) {
			return func(config *cacher.Config) {
				config.GetAttrsFunc = func(o runtime.Object) (l labels.Set, f fields.Set, err error) {
					if l, f, err = poddata.Attrs(o); l["poison"] != "" {
						return nil, nil, failure
					}
					return l, f, err
				}
			}
		}, func(store *memstore.Store, _ error) { put(store) }},
		"a key": {func(failure error) func(*cacher.Config) {
			return func(config *cacher.Config) {
				config.KeyFunc = func(o runtime.Object) (string, error) {
					if o.(*example.Pod).Labels["poison"] != "" {
						return "", failure
					}
					return poddata.Key(o)
				}
			}
		}, func(store *memstore.Store, _ error) { put(store) }},
		"an index": {func(failure error) func(*cacher.Config) {
			return withIndexers(cache.Indexers{storage.FieldIndex("spec.nodeName"): func(o any) ([]string, error) {
				if o.(*example.Pod).Labels["poison"] != "" {
					return nil, failure
				}
				return byNode(o)
			}})
		}, func(store *memstore.Store, _ error) { put(store) }},
		"a conversion": {func(failure error) func(*cacher.Config) {
			return func(config *cacher.Config) { config.Versioner = failingVersioner{config.Versioner, failure} }
		}, func(store *memstore.Store, _ error) { put(store) }},
		"a difference": {func(error) func(*cacher.Config) {
			return func(config *cacher.Config) { config.ConsistencyCheckInterval = 10 * time.Second }
		}, func(store *memstore.Store, _ error) {
			release := store.Hold()
			put(store)
			store.SkipEvents()
			release()
		}},
	} {
		change := tc.change
		if change == nil {
			change = func(error) func(*cacher.Config) { return none }
		}
		for name, text := range quoting {
			t.Run(fault+"/"+name, func(t *testing.T) {
				failure := errors.New(text)
				seen := everythingThatLeaves(t, change(failure), func(store *memstore.Store) { tc.break_(store, failure) })
				for where, text := range seen {
					assert.NotContains(t, text, markedContent, "%s: %s", where, text)
					if where != "log" {
						assert.NotContains(t, text, markedName, "%s: %s", where, text)
					}
				}
			})
		}
	}
}

// failingVersioner can't read the resourceVersion of the marked object.
type failingVersioner struct {
	storage.Versioner
	err error
}

func (f failingVersioner) ObjectResourceVersion(o runtime.Object) (uint64, error) {
	if pod, ok := o.(*example.Pod); ok && pod.Labels["poison"] != "" {
		return 0, f.err
	}
	return f.Versioner.ObjectResourceVersion(o)
}

// everythingThatLeaves runs a cache for a minute while a client of one namespace
// uses it and fault happens to an object of another one, and returns all texts that
// have left it.
func everythingThatLeaves(t *testing.T, change func(*cacher.Config), fault func(*memstore.Store)) map[string]string {
	var client strings.Builder
	registry := prometheus.NewRegistry()
	meters, err := metrics.New(registry)
	require.NoError(t, err)
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	seen := map[string]string{}
	seen["log"] = logged(t, func() {
		var verbose klog.Level
		require.NoError(t, verbose.Set("10"))
		inBubble(t, func() *memstore.Store { return newStore(poddata.Pod("b/one")) }, func(t *testing.T, store *memstore.Store, c *cacher.Cacher) {
			nobody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionDeny, "", nil
			})
			page := debug.New(debug.Config{Caches: func() []*cacher.Cacher { return []*cacher.Cacher{c} }, Authorizer: nobody})
			ctx, span := tracer.Start(t.Context(), "client")
			watches := []*podWatch{watchPods(t, c, "/pods/b/", "2"), watchPods(t, c, "/pods/b/", "", streaming)}
			synctest.Wait()
			fault(store)
			for range 12 {
				// Another client's GET shares the version request of the first one.
				other := goGet(t.Context(), c, "/pods/hidden/"+markedName, "")
				pod := &example.Pod{}
				fmt.Fprintln(&client, c.Get(ctx, "/pods/b/one", storage.GetOptions{}, pod))
				for _, rv := range []string{"", "0", "2"} {
					err := c.GetList(ctx, "/pods/b/", everything(rv), &example.PodList{})
					if apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) { // and not storage's own
						fmt.Fprintln(&client, err)
					}
					w, err := c.Watch(ctx, "/pods/b/", everything(rv))
					fmt.Fprintln(&client, err)
					if err == nil {
						watches = append(watches, &podWatch{Interface: w, t: t})
					}
				}
				fmt.Fprintln(&client, c.ReadinessCheck())
				status, err := json.Marshal(c.Status())
				require.NoError(t, err)
				seen["status"] += string(status)
				for _, query := range []string{"?format=json", "?format=json&resource=pods&values=true"} {
					shown := httptest.NewRecorder()
					page.ServeHTTP(shown, httptest.NewRequest(http.MethodGet, debug.Path+query, nil))
					require.Equal(t, http.StatusOK, shown.Code, "%s", shown.Body)
					seen["page"] += shown.Body.String()
				}
				elapse(5 * time.Second)
				<-other.done
			}
			for _, w := range watches {
				w.Stop()
				for event := range w.ResultChan() {
					text, err := json.Marshal(event)
					require.NoError(t, err)
					client.Write(text)
				}
			}
			span.End()
		}, func(config *cacher.Config) { config.ConsistencyCheckInterval, config.Metrics = -1, meters }, change)
	})
	seen["client"] = client.String()
	families, err := registry.Gather()
	require.NoError(t, err)
	seen["metrics"] = fmt.Sprint(families)
	var recorded bytes.Buffer
	for _, span := range spans.GetSpans() {
		fmt.Fprintln(&recorded, span.Name, span.Attributes, span.Status, span.Events)
	}
	seen["spans"] = recorded.String()
	require.NotEmpty(t, seen["spans"])
	return seen
}
