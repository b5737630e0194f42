// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	apietcd3 "k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// keys comes before the keys of storage.Interface.
const keys = "/registry"

// resource is Pods by some name, and where they are stored.
type resource struct {
	schema.GroupResource
	prefix string
}

var (
	pods   = resource{poddata.Resource, poddata.Prefix}
	others = resource{schema.GroupResource{Resource: "others"}, "/others/"}
)

// noProgress has a cache ask nothing of kine's progress reports, which can't
// be relied on: see docs/adopting.md.
var noProgress = cacher.Configure(func(c *cacher.Config) { c.WatchProgress = func() bool { return false } })

// fixture is a kine, and a cache of Pods on it.
type fixture struct {
	*cached
	kine *process
	// backend is what the caches share; its requests for Pods are counted.
	// direct goes past caches and counter.
	backend, direct *etcd3.Backend
	requests        *counting.Requests
	registry        *prometheus.Registry
}

func newFixture(t *testing.T, kine *process, options ...cacher.Option) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	f := &fixture{kine: kine, requests: counting.Of(keys + pods.prefix), registry: prometheus.NewRegistry()}
	f.direct = open(t, ctx, kine)
	f.backend = open(t, ctx, kine, f.requests.DialOptions()...)
	f.cached = f.cache(t, ctx, pods, options...)
	return f
}

// open returns when kine has answered.
func open(t *testing.T, ctx context.Context, kine *process, options ...grpc.DialOption) *etcd3.Backend {
	t.Helper()
	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: []string{kine.endpoint()}, Prefix: keys, DialOptions: options})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	return backend
}

func (r resource) config() *storagebackend.ConfigForResource {
	config := storagebackend.NewDefaultConfig(keys, poddata.Codec()).ForResource(r.GroupResource)
	// Objects that end within this time share a lease, and end together.
	config.LeaseManagerConfig = apietcd3.LeaseManagerConfig{ReuseDurationSeconds: 1, MaxObjectCount: 1000}
	return config
}

func (r resource) key(obj runtime.Object) (string, error) {
	return storage.NamespaceKeyFunc(r.prefix, obj)
}

// raw gives the resource's storage.
func (r resource) raw(t *testing.T, backend *etcd3.Backend) storage.Interface {
	t.Helper()
	s, destroy, err := backend.RawStorage(r.config(), poddata.New, poddata.NewList, r.prefix)
	require.NoError(t, err)
	t.Cleanup(destroy)
	return s
}

// cache makes a cache as an API server does, and waits until it is ready.
func (f *fixture) cache(t *testing.T, ctx context.Context, r resource, options ...cacher.Option) *cached {
	t.Helper()
	m, err := metrics.New(f.registry)
	require.NoError(t, err)
	options = append([]cacher.Option{cacher.WithRawStorage(f.backend.RawStorage), cacher.WithMetrics(m)}, options...)
	s, destroy, err := cacher.Decorator(options...)(r.config(), r.prefix, r.key,
		poddata.New, poddata.NewList, poddata.Attrs, poddata.Triggers(), nil)
	require.NoError(t, err)
	t.Cleanup(destroy)
	c := s.(*cacher.Cacher)
	require.NoError(t, c.Wait(ctx))
	return &cached{resource: r, ctx: ctx, cacher: c, stored: r.raw(t, f.direct)}
}

// metric is the sum of a counter over the series that have all the label values.
func (f *fixture) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return counting.Metric(t, f.registry, name, labels...)
}

// eventually waits for what is sure to happen.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, patience, time.Millisecond, what)
}
