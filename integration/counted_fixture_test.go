// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/metrics"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// counted is a cacher whose requests to etcd are counted, and a way to the
// same objects that is not.
type counted struct {
	*counting.Requests
	ctx    context.Context
	keys   string // is etcd's key prefix
	cacher *cacher.Cacher
	clock  *readClock
	// direct and client read and write past the cacher and the counter.
	direct   storage.Interface
	client   *clientv3.Client
	codec    k8sruntime.Codec
	registry *prometheus.Registry
	// readers are awaited when the cacher has stopped, also by a test that
	// fails before they end.
	readers sync.WaitGroup
}

// newCounted fills etcd with the pods and then starts a cacher on them. Its
// reads wait for freshness until the test ends their wait.
func newCounted(t *testing.T, server *etcdserver.Server, seed []*example.Pod, change ...func(*cacher.Config)) *counted {
	t.Helper()
	noLeaks(t)
	ctx, cancel := context.WithTimeout(context.Background(), suitePatience)
	keys := "/" + t.Name()
	f := &counted{
		Requests: counting.Of(keys + podPrefix), ctx: ctx, keys: keys, codec: poddata.JSONCodec(),
		clock: newReadClock(), registry: prometheus.NewRegistry(),
	}
	t.Cleanup(f.readers.Wait)
	t.Cleanup(cancel)
	f.direct, f.client = f.open(t, server)
	f.put(t, seed...)
	f.start(t, server, change...)
	return f
}

// start starts the cacher, on a connection of its own.
func (f *counted) start(t *testing.T, server *etcdserver.Server, change ...func(*cacher.Config)) {
	t.Helper()
	watched, _ := f.open(t, server, f.DialOptions()...)
	m, err := metrics.New(f.registry)
	require.NoError(t, err)
	cfg := podConfig(withoutHistory{watched.(etcdStorage)}, f.codec)
	cfg.Clock, cfg.FreshnessTimeout, cfg.Metrics = f.clock, heldTimeout, m
	for _, change := range change {
		change(&cfg)
	}
	f.cacher, err = cacher.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { stopInTime(t, f.cacher) })
	require.NoError(t, f.cacher.Wait(f.ctx))
	// When the first event has come the watch stands, and storage need not
	// read what was there before an event (see package storage/etcd3).
	f.reached(t, f.put(t, newLabelledPod("warm", "up", nil)))
	for len(f.clock.waiting) > 0 {
		<-f.clock.waiting
	}
}

// etcdStorage is what the cacher uses of package storage/etcd3.
type etcdStorage interface {
	storage.Interface
	WatchProgress() bool
	PrefersLists() bool
	Versions(ctx context.Context, prefix string, rv uint64, visit func(key string, rv uint64) error) error
	KeyVersions(ctx context.Context, keys []string) (versions []uint64, current uint64, err error)
}

// withoutHistory keeps the cacher from going back to before its start, so that its
// window begins there, and no requests for the history are counted.
type withoutHistory struct{ etcdStorage }

func (withoutHistory) KeepsHistory() bool { return false }

// open gives a store of pods, and the client that it uses.
func (f *counted) open(t *testing.T, server *etcdserver.Server, options ...grpc.DialOption) (storage.Interface, *clientv3.Client) {
	t.Helper()
	backend, err := etcd3.Open(f.ctx, etcd3.Config{Endpoints: server.Endpoints(), Prefix: f.keys, DialOptions: options})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	s, err := backend.Storage(etcd3.ResourceConfig{
		GroupResource: pods, ResourcePrefix: podPrefix, Codec: f.codec, NewFunc: poddata.New, NewListFunc: poddata.NewList,
	})
	require.NoError(t, err)
	return s, backend.Client()
}

// put stores pods past the cacher and returns the last revision.
func (f *counted) put(t *testing.T, list ...*example.Pod) (revision int64) {
	t.Helper()
	revision, err := f.store(list...)
	require.NoError(t, err)
	return revision
}

// store is put for goroutines: a hundred pods make one transaction.
func (f *counted) store(list ...*example.Pod) (revision int64, err error) {
	for chunk := range slices.Chunk(list, 100) {
		var ops []clientv3.Op
		for _, pod := range chunk {
			data, err := k8sruntime.Encode(f.codec, pod)
			if err != nil {
				return 0, err
			}
			ops = append(ops, clientv3.OpPut(f.Prefix()+pod.Namespace+"/"+pod.Name, string(data)))
		}
		done, err := f.client.Txn(f.ctx).Then(ops...).Commit()
		if err != nil {
			return 0, err
		}
		revision = done.Header.Revision
	}
	return revision, nil
}

// reached waits until the cache has reached the revision.
func (f *counted) reached(t *testing.T, revision int64) {
	t.Helper()
	opts := storage.GetOptions{ResourceVersion: strconv.FormatInt(revision, 10), IgnoreNotFound: true}
	require.NoError(t, f.cacher.Get(f.ctx, podPrefix+"none/none", opts, &example.Pod{}))
}

// await receives from c.
func (f *counted) await(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-f.ctx.Done():
		require.NoError(t, f.ctx.Err())
	}
}

// metric is the sum of a counter over the series that have the label values.
func (f *counted) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return counting.Metric(t, f.registry, name, labels...)
}

// heldTimeout is a FreshnessTimeout that a readClock knows from other times, and
// so does what is left of it, or of the part of it that a GET waits.
const heldTimeout = 10 * time.Hour

// readClock is the real clock, but for the time that reads wait for freshness:
// it is over when the test says so. Until then nothing is sent a second time
// because it is slow.
type readClock struct {
	clock.RealClock
	// waiting has an element for each read that has begun to wait.
	waiting chan struct{}
	expired chan time.Time
}

func newReadClock() *readClock {
	return &readClock{waiting: make(chan struct{}, 1000), expired: make(chan time.Time)}
}

// NewTimer implements clock.Clock.
func (c *readClock) NewTimer(d time.Duration) clock.Timer {
	timer := c.RealClock.NewTimer(d)
	if d < heldTimeout/10 {
		return expiringTimer{timer, nil}
	}
	select {
	case c.waiting <- struct{}{}:
	default: // nobody counts them
	}
	return expiringTimer{timer, c.expired}
}

// expire ends the wait of all reads, and of those to come.
func (c *readClock) expire() { close(c.expired) }

// expiringTimer never expires by itself.
type expiringTimer struct {
	clock.Timer
	expired <-chan time.Time
}

// C implements clock.Timer.
func (t expiringTimer) C() <-chan time.Time { return t.expired }

// seedPods makes n pods, ten namespaces of them.
func seedPods(n int) []*example.Pod {
	seed := make([]*example.Pod, n)
	for i := range seed {
		seed[i] = newLabelledPod("ns-"+strconv.Itoa(i%10), fmt.Sprintf("pod-%05d", i), nil)
	}
	return seed
}

func newLabelledPod(namespace, name string, labels map[string]string) *example.Pod {
	pod := &example.Pod{}
	pod.Namespace, pod.Name, pod.Labels = namespace, name, labels
	return pod
}

var everyPod = storage.ListOptions{Recursive: true, Predicate: storage.Everything}

// list lists with s, which is the cacher or what goes past it.
func (f *counted) list(t *testing.T, s storage.Interface, opts storage.ListOptions) *example.PodList {
	t.Helper()
	list := &example.PodList{}
	require.NoError(t, s.GetList(f.ctx, podPrefix, opts, list))
	return list
}

func contains(list *example.PodList, name string) bool {
	for i := range list.Items {
		if list.Items[i].Name == name {
			return true
		}
	}
	return false
}
