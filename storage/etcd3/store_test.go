// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"errors"
	"net"
	"path"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestStoreReadsAndWrites(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), Prefix: "fleet"})
	s := newStore(t, b, pods("pods"))
	ctx := testContext(t)

	created := create(t, s, "/pods/ns/a")
	raw, err := b.Client().Get(ctx, "/fleet/pods/ns/a")
	require.NoError(t, err)
	require.Len(t, raw.Kvs, 1, "Prefix, ResourcePrefix and name make the key")
	require.Equal(t, rvOf(t, created), uint64(raw.Kvs[0].ModRevision))

	got := &example.Pod{}
	require.NoError(t, s.Get(ctx, "/pods/ns/a", storage.GetOptions{}, got))
	require.Equal(t, created, got)
	updated := &example.Pod{}
	require.NoError(t, s.GuaranteedUpdate(ctx, "/pods/ns/a", updated, false, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			pod := obj.(*example.Pod)
			pod.Labels = map[string]string{"x": "y"}
			return pod, nil
		}), nil))
	require.Greater(t, rvOf(t, updated), rvOf(t, created))
	list := &example.PodList{}
	require.NoError(t, s.GetList(ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list))
	require.Equal(t, []example.Pod{*updated}, list.Items)
	rv, err := s.GetCurrentResourceVersion(ctx)
	require.NoError(t, err)
	require.Equal(t, rvOf(t, updated), rv)

	w := watchAll(t, s, "/pods/", created.ResourceVersion)
	event := change(t, w)
	require.Equal(t, watch.Modified, event.Type)
	require.Equal(t, updated, event.Object)
	deleted := &example.Pod{}
	require.NoError(t, s.Delete(ctx, "/pods/ns/a", deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	require.Equal(t, watch.Deleted, change(t, w).Type)
	err = s.Get(ctx, "/pods/ns/a", storage.GetOptions{}, got)
	require.True(t, storage.IsNotFound(err), err)
}

// The suite that every storage must pass, as far as it needs no access to the
// inside of k8s.io/apiserver's store.
func TestStoreConformance(t *testing.T) {
	b := newBackend(t)
	increaseRV := func(_ context.Context, t *testing.T) int64 { return bump(t, b) }
	noKeyCheck := func(context.Context, *testing.T, string) {}
	for name, run := range map[string]func(context.Context, *testing.T, storage.Interface){
		"Create": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestCreate(ctx, t, s, noKeyCheck)
		},
		"CreateWithKeyExist":              storagetesting.RunTestCreateWithKeyExist,
		"CreateWithTTL":                   storagetesting.RunTestCreateWithTTL,
		"Get":                             storagetesting.RunTestGet,
		"UnconditionalDelete":             storagetesting.RunTestUnconditionalDelete,
		"ConditionalDelete":               storagetesting.RunTestConditionalDelete,
		"DeleteWithSuggestionAndConflict": storagetesting.RunTestDeleteWithSuggestionAndConflict,
		"ListPaging":                      storagetesting.RunTestListPaging,
		"NamespaceScopedList":             storagetesting.RunTestNamespaceScopedList,
		"GetListNonRecursive": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, increaseRV, s)
		},
		"GuaranteedUpdateWithConflict": storagetesting.RunTestGuaranteedUpdateWithConflict,
		"KeySchema":                    storagetesting.RunTestKeySchema,
		"Watch":                        storagetesting.RunTestWatch,
		"WatchFromNonZero":             storagetesting.RunTestWatchFromNonZero,
		"DeleteTriggerWatch":           storagetesting.RunTestDeleteTriggerWatch,
		"WatchContextCancel":           storagetesting.RunTestWatchContextCancel,
		"WatcherTimeout":               storagetesting.RunTestWatcherTimeout,
		"WatchInitialization":          storagetesting.RunTestWatchInitializationSignal,
		"ClusterScopedWatch":           storagetesting.RunTestClusterScopedWatch,
		"NamespaceScopedWatch":         storagetesting.RunTestNamespaceScopedWatch,
		"WatchListMatchSingle":         storagetesting.RunWatchListMatchSingle,
		"WatchSemantics":               storagetesting.RunWatchSemantics,
		"SendInitialEvents":            storagetesting.RunSendInitialEventsBackwardCompatibility,
		"DelayedWatchDelivery":         storagetesting.RunTestDelayedWatchDelivery,
		"WatchDeleteHasLatestRV":       storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Client().Delete(testContext(t), "/registry/", clientv3.WithPrefix())
			require.NoError(t, err)
			c := pods("pods")
			c.ResourcePrefix = "/pods/"
			s := newStore(t, b, c)
			t.Cleanup(s.(interface{ Close() }).Close)
			run(context.Background(), t, s)
		})
	}
}

// bump raises etcd's revision without touching a resource.
func bump(t *testing.T, b *etcd3.Backend) int64 {
	t.Helper()
	resp, err := b.Client().Put(testContext(t), "bump", "")
	require.NoError(t, err)
	return resp.Header.Revision
}

// Two resources, with reads, writes, watches and health checks, use one
// connection. Those that Open asked for the version with are closed.
func TestResourcesShareOneConnection(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	var connections atomic.Int32
	dialer := func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		connections.Add(1)
		return &countedConn{Conn: c, open: &connections}, nil
	}
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(dialer)}})
	for _, name := range []string{"pods", "nodes"} {
		s := newStore(t, b, pods(name))
		w := watchAll(t, s, "/"+name+"/", "")
		create(t, s, "/"+name+"/ns/a")
		require.Equal(t, watch.Added, next(t, w).Type)
	}
	require.NoError(t, b.Healthy(testContext(t)))
	// k8s.io/apiserver's own check, which is process-wide, opens one for a
	// moment too.
	require.Eventually(t, func() bool { return connections.Load() == 1 }, deadline, time.Millisecond)
	require.NoError(t, b.Close())
	require.Zero(t, connections.Load())
}

type countedConn struct {
	net.Conn
	open   *atomic.Int32
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// A request for progress reaches the watches of its own store and no other's.
func TestProgressReachesOneStoreOnly(t *testing.T) {
	b := newBackend(t)
	a, other := newStore(t, b, pods("pods")), newStore(t, b, pods("nodes"))
	rv := strconv.FormatInt(bump(t, b), 10)
	onA, onA2, onOther := watchAll(t, a, "/pods/", rv), watchAll(t, a, "/pods/ns/", rv), watchAll(t, other, "/nodes/", rv)
	// Each watch is established: a watch that starts later would not be told.
	for _, s := range []storage.Interface{a, other} {
		prefix := map[storage.Interface]string{a: "/pods/", other: "/nodes/"}[s]
		create(t, s, prefix+"ns/first")
	}
	require.Equal(t, watch.Added, change(t, onA).Type)
	require.Equal(t, watch.Added, change(t, onA2).Type)
	require.Equal(t, watch.Added, change(t, onOther).Type)

	at := bump(t, b)
	// The context's own metadata must not lead to another stream.
	ctx := metadata.AppendToOutgoingContext(testContext(t), "caller", "x")
	require.NoError(t, a.RequestWatchProgress(ctx))
	for _, w := range []watch.Interface{onA, onA2} {
		e := next(t, w)
		require.Equal(t, watch.Bookmark, e.Type)
		require.GreaterOrEqual(t, rvOf(t, e.Object), uint64(at))
	}
	// The notification went to every watch of its stream at the same time, so
	// the other store's next event would be a bookmark if it were among them.
	create(t, other, "/nodes/ns/second")
	require.Equal(t, watch.Added, change(t, onOther).Type)

	require.NoError(t, other.RequestWatchProgress(testContext(t)))
	require.Equal(t, watch.Bookmark, next(t, onOther).Type)
	create(t, a, "/pods/ns/second")
	require.Equal(t, watch.Added, change(t, onA).Type)
}

// The same with watches that share a stream, as they do without our metadata:
// the experiment above can fail.
func TestProgressReachesAllOfAStream(t *testing.T) {
	b := newBackend(t)
	rev := bump(t, b)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	w1 := b.Client().Watch(ctx, "/a", clientv3.WithRev(rev+1), clientv3.WithCreatedNotify())
	w2 := b.Client().Watch(ctx, "/b", clientv3.WithRev(rev+1), clientv3.WithCreatedNotify())
	require.True(t, (<-w1).Created)
	require.True(t, (<-w2).Created)
	bump(t, b) // a watch from the future is not told where it is
	require.NoError(t, b.Client().RequestProgress(ctx))
	for _, w := range []clientv3.WatchChan{w1, w2} {
		resp := <-w
		require.True(t, resp.IsProgressNotify())
	}
}

// Without a watch there is nobody to tell, and no stream is opened for it.
func TestProgressWithoutWatch(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	var streams atomic.Int32
	count := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if md, _ := metadata.FromOutgoingContext(ctx); path.Base(method) == "Watch" && len(md.Get("watchcache-stream")) > 0 {
			streams.Add(1)
		}
		return streamer(ctx, desc, cc, method, opts...)
	}
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(count)}})
	s := newStore(t, b, pods("pods"))
	require.NoError(t, s.RequestWatchProgress(testContext(t)))
	require.Zero(t, streams.Load())

	w := watchAll(t, s, "/pods/", strconv.FormatInt(bump(t, b), 10))
	create(t, s, "/pods/ns/a")
	change(t, w)
	require.NoError(t, s.RequestWatchProgress(testContext(t)))
	require.Equal(t, watch.Bookmark, next(t, w).Type)
	require.Equal(t, int32(1), streams.Load())
	w.Stop()
	require.NoError(t, s.RequestWatchProgress(testContext(t)))
	require.Equal(t, int32(1), streams.Load())
}

func TestCompactionIsObserved(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	observer := newStore(t, open(t, etcd3.Config{Endpoints: srv.Endpoints()}), pods("pods"))
	require.Zero(t, observer.CompactRevision())

	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), CompactionInterval: 50 * time.Millisecond})
	s := newStore(t, b, pods("pods"))
	first := create(t, s, "/pods/ns/a")
	bump(t, b)
	seen := func(s storage.Interface) func() bool {
		return func() bool { return s.CompactRevision() >= int64(rvOf(t, first)) }
	}
	require.Eventually(t, seen(s), deadline, time.Millisecond, "the one that compacts")
	require.Eventually(t, seen(observer), deadline, time.Millisecond, "the one that only looks")

	_, err := b.Client().Get(testContext(t), "x", clientv3.WithRev(int64(rvOf(t, first))-1))
	require.ErrorContains(t, err, "compacted")
}

func TestLatencyIsTracked(t *testing.T) {
	s := newStore(t, newBackend(t), pods("pods"))
	ctx := endpointsrequest.WithLatencyTrackers(testContext(t))
	require.NoError(t, s.Get(ctx, "/pods/ns/a", storage.GetOptions{IgnoreNotFound: true}, &example.Pod{}))
	trackers, ok := endpointsrequest.LatencyTrackersFrom(ctx)
	require.True(t, ok)
	require.NotZero(t, trackers.StorageTracker.GetLatency())
}

// The feature gate counts as it was when the backend was opened.
func TestCorruptObject(t *testing.T) {
	for _, enabled := range []bool{true, false} {
		t.Run(strconv.FormatBool(enabled), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, enabled)
			b := newBackend(t)
			s := newStore(t, b, pods("pods"))
			_, err := b.Client().Put(testContext(t), "/registry/pods/ns/bad", "not an object")
			require.NoError(t, err)
			err = s.Get(testContext(t), "/pods/ns/bad", storage.GetOptions{}, &example.Pod{})
			require.Error(t, err)
			require.Equal(t, enabled, storage.IsCorruptObject(err), err)
			err = s.Delete(testContext(t), "/pods/ns/bad", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
				deleteUnreadable)
			require.Equal(t, enabled, err == nil, err)
		})
	}
}

func TestStoreClose(t *testing.T) {
	b := newBackend(t)
	s, other := newStore(t, b, pods("pods")), newStore(t, b, pods("pods"))
	require.NoError(t, s.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }))
	w, onOther := watchAll(t, s, "/pods/", ""), watchAll(t, other, "/pods/", "")

	for range 2 {
		s.(interface{ Close() }).Close()
	}
	for range w.ResultChan() { // ends
	}
	_, err := s.Watch(testContext(t), "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true})
	require.ErrorIs(t, err, etcd3.ErrClosed)
	require.ErrorIs(t, s.RequestWatchProgress(testContext(t)), etcd3.ErrClosed)
	require.ErrorIs(t, s.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }), etcd3.ErrClosed)

	// The other one, on the same client, goes on.
	create(t, other, "/pods/ns/a")
	require.Equal(t, watch.Added, next(t, onOther).Type)
}

// Close of the backend ends what is left open, also a watch that nobody reads
// and nobody stops. (Goroutines are counted at the end of the tests.)
func TestBackendCloseEndsStores(t *testing.T) {
	b := newBackend(t)
	s := newStore(t, b, pods("pods"))
	require.NoError(t, s.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }))
	opts := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
	read, err := s.Watch(context.Background(), "/pods/", opts)
	require.NoError(t, err)
	_, err = s.Watch(context.Background(), "/pods/", opts)
	require.NoError(t, err)
	for i := range 300 { // more than the watch has room for
		create(t, s, "/pods/ns/"+strconv.Itoa(i))
		next(t, read)
	}
	require.NoError(t, b.Close())
	for range read.ResultChan() { // ends
	}
	_, err = s.Watch(context.Background(), "/pods/", opts)
	require.ErrorIs(t, err, etcd3.ErrClosed)
}

func TestWatchRefused(t *testing.T) {
	s := newStore(t, newBackend(t), pods("pods"))
	_, err := s.Watch(testContext(t), "/pods/", storage.ListOptions{ResourceVersion: "x", Predicate: storage.Everything, Recursive: true})
	require.Error(t, err)
	require.False(t, errors.Is(err, etcd3.ErrClosed))
}
