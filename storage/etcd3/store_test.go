// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// bump raises etcd's revision without touching a resource.
func bump(t *testing.T, b *etcd3.Backend) int64 {
	t.Helper()
	resp, err := b.Client().Put(testContext(t), "bump", "")
	require.NoError(t, err)
	return resp.Header.Revision
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
