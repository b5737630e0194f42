// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/utils/clock"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// patience bounds the wait for anything that is sure to happen.
const patience = 3 * time.Minute

// suitePatience bounds one suite. Some wait for ever for what does not come.
const suitePatience = 4 * time.Minute

// setup is what a suite needs of its surroundings beyond the defaults.
type setup struct {
	// gates are feature gates to set while the suite runs.
	gates map[featuregate.Feature]bool
	// keys is etcd's key prefix. Empty: one of the suite's own.
	keys string
	// server demands an etcd that nobody has written to.
	server bool
	// configure changes the cacher's configuration.
	configure []func(*cacher.Config)
	// watched says which transformer the cacher's own watch reads with.
	watched watched
	// corruptible adds what k8s.io/apiserver adds to its storage to delete
	// objects that can't be read.
	corruptible bool
	// failing is put in the place of the transformer or the codec.
	failing failingPart
}

// watched is the transformer that the cacher's watch of etcd reads with.
type watched int

const (
	// watchedTogether: that of reads and writes, exchanged with it.
	watchedTogether watched = iota
	// watchedApart: one of its own, which is never exchanged. The cache sees the
	// same whether or not an event is quicker than the exchange.
	watchedApart
	// watchedHeld: that of reads and writes, and no event is read before the
	// first exchange.
	watchedHeld
)

type failingPart int

const (
	nothingFails failingPart = iota
	transformerFails
	codecFails
)

// fixture is a cacher over etcd, and what suites ask for.
type fixture struct {
	ctx       context.Context
	client    *kubernetes.Client
	recorder  *storagetesting.KubernetesRecorder
	compactor etcd3.Compactor
	storage   storage.Interface
	cacher    *cacher.Cacher
	codec     runtime.Codec
	keys      string
	stored    *storagetesting.PrefixTransformer
	failing   *failing
	exchanges []*exchangeable
}

// split reads and writes one store and watches another over the same keys.
type split struct {
	storage.Interface
	watching storage.Interface
}

// Watch implements storage.Interface.
func (s split) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.watching.Watch(ctx, key, opts)
}

// WatchProgress tells the cacher what the etcd that go.mod requires can do.
func (s split) WatchProgress() bool { return true }

// newFixture starts a cacher for one suite. When the suite is over the cacher
// is stopped, and no goroutine that was started since may be left.
func newFixture(t *testing.T, server *etcdserver.Server, need setup) *fixture {
	t.Helper()
	if need.server {
		server = etcdserver.Start(t, etcdserver.Config{})
	}
	noLeaks(t)
	for gate, on := range need.gates {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
	}
	ctx, cancel := context.WithTimeout(context.Background(), suitePatience)
	t.Cleanup(cancel)
	f := &fixture{ctx: ctx, codec: poddata.JSONCodec(), keys: need.keys, stored: newPrefixTransformer()}
	if f.keys == "" {
		f.keys = "/" + path.Base(t.Name())
	}
	f.dial(t, server)
	f.wipe(t)
	f.storage = f.newStorage(t, need)
	cfg := podConfig(f.storage, f.codec)
	for _, change := range need.configure {
		change(&cfg)
	}
	c, err := cacher.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { stopInTime(t, c) })
	f.cacher = c
	waitCtx, cancelWait := context.WithTimeout(ctx, patience)
	defer cancelWait()
	require.NoError(t, c.Wait(waitCtx))
	return f
}

// dial makes the client, which records the lists that it sends, and what
// observes compactions.
func (f *fixture) dial(t *testing.T, server *etcdserver.Server) {
	t.Helper()
	client, err := kubernetes.New(clientv3.Config{
		Endpoints: server.Endpoints(), DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	f.client = client
	f.recorder = storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.Kubernetes = f.recorder
	client.KV = storagetesting.NewKVRecorder(client.KV, f.recorder)
	compactor := etcd3.NewCompactor(client.Client, 0, clock.RealClock{}, nil)
	t.Cleanup(compactor.Stop)
	f.compactor = compactor
}

// wipe removes what earlier suites have left, of whatever keys: an object with
// a time to live that ends during this suite would be a revision that it does
// not expect. The key that servers compact by stays.
func (f *fixture) wipe(t *testing.T) {
	t.Helper()
	_, err := f.client.Delete(f.ctx, "/", clientv3.WithPrefix())
	require.NoError(t, err)
}

func (f *fixture) newStorage(t *testing.T, need setup) storage.Interface {
	t.Helper()
	var transformer value.Transformer = f.stored
	switch need.failing {
	case transformerFails:
		f.failing = &failing{Transformer: transformer}
		transformer = f.failing
	case codecFails:
		f.failing = &failing{Codec: f.codec}
		f.codec = f.failing
	}
	reading := newExchangeable(transformer, false)
	f.exchanges = []*exchangeable{reading}
	inner := f.newStore(t, need, reading)
	switch need.watched {
	case watchedApart:
		return split{inner, f.newStore(t, need, newExchangeable(transformer, false))}
	case watchedHeld:
		watching := newExchangeable(transformer, true)
		f.exchanges = append(f.exchanges, watching)
		return split{inner, f.newStore(t, need, watching)}
	case watchedTogether:
	}
	return split{inner, inner}
}

func (f *fixture) newStore(t *testing.T, need setup, transformer value.Transformer) storage.Interface {
	t.Helper()
	versioner := storage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(f.codec, versioner)
	if need.corruptible {
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	s, err := f.openStorage(transformer, decoder, versioner)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	if need.corruptible {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, pods)
	}
	return s
}

// stopInTime fails the test when Stop hangs.
func stopInTime(t *testing.T, c *cacher.Cacher) {
	t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.Stop()
	}()
	select {
	case <-stopped:
	case <-time.After(patience):
		assert.Fail(t, fmt.Sprintf("Stop has not returned after %s", patience))
	}
}

// exchangeable is the store as suites take it that exchange its transformer.
func (f *fixture) exchangeable() *exchanged {
	return &exchanged{Interface: f.cacher, in: f.exchanges}
}

// check is a storagetesting.KeyValidation: what etcd holds under a key is an
// object without what only readers may see.
func (f *fixture) check(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	got, err := f.client.KV.Get(ctx, path.Join(f.keys, key))
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1, "nothing is stored under %s", key)
	data, _, err := f.stored.TransformFromStorage(ctx, got.Kvs[0].Value, value.DefaultContext(key))
	require.NoError(t, err)
	_, err = runtime.Decode(f.codec, data)
	require.NoError(t, err)
	require.NotContains(t, string(data), "resourceVersion")
	require.NotContains(t, string(data), "selfLink")
}

// increase is a storagetesting.IncreaseRVFunc: a write that has nothing to do
// with pods.
func (f *fixture) increase(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	put, err := f.client.Put(ctx, "/unrelated", "")
	require.NoError(t, err)
	return put.Header.Revision
}

// compactAndFlush is compact, and then changes another object until the
// cacher's window no longer reaches back to the version.
func (f *fixture) compactAndFlush(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	f.compact(ctx, t, resourceVersion)
	rv, err := strconv.ParseUint(resourceVersion, 10, 64)
	require.NoError(t, err)
	for i := 0; f.cacher.Status().OldestResourceVersion < rv; i++ {
		require.NoError(t, ctx.Err())
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "flush", Name: "pod-" + strconv.Itoa(i)}}
		require.NoError(t, f.cacher.Create(ctx, podPrefix+"flush/"+pod.Name, pod, &example.Pod{}, 0))
	}
}

// compact is a storagetesting.Compaction: as another server would, and it
// returns when the cacher has noticed.
func (f *fixture) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rv, err := strconv.ParseInt(resourceVersion, 10, 64)
	require.NoError(t, err)
	for version, done := int64(0), int64(0); done != rv; {
		// A try with the wrong version tells the right one.
		version, _, done, err = etcd3.Compact(ctx, f.client.Client, version, rv)
		require.NoError(t, err)
		require.LessOrEqual(t, done, rv, "more than that is compacted already")
	}
	before := strconv.FormatInt(rv-1, 10)
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if f.cacher.CompactRevision() < rv {
			return false, nil
		}
		err := f.cacher.GetList(ctx, podPrefix, storage.ListOptions{
			Recursive: true, Predicate: storage.Everything,
			ResourceVersion: before, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		}, &example.PodList{})
		return err != nil, nil
	})
	require.NoError(t, err, "the cacher does not notice that revision %d was compacted", rv)
}

// settling is the cacher with a Create that returns when the cache has what
// was created, for suites that read "any version" and mean the latest.
type settling struct{ *cacher.Cacher }

// Create implements storage.Interface.
func (s settling) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.Cacher.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	rv := out.(*example.Pod).ResourceVersion
	return s.Get(ctx, key, storage.GetOptions{ResourceVersion: rv}, &example.Pod{})
}

// paging is settling with pages of the most recent version where a client asks for
// pages of any: at resourceVersion "0" a watch cache ignores the limit.
type paging struct{ settling }

// GetList implements storage.Interface.
func (p paging) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	if opts.ResourceVersion == "0" && opts.Predicate.Limit > 0 {
		opts.ResourceVersion = ""
	}
	return p.settling.GetList(ctx, key, opts, into)
}

// unhurried is the cacher with a Create that takes as long as it takes, for a
// suite that allows three seconds for a hundred of them.
type unhurried struct {
	*cacher.Cacher
	f *fixture
}

// Create implements storage.Interface.
func (s unhurried) Create(_ context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.Cacher.Create(s.f.ctx, key, obj, out, ttl)
}

// deletedElsewhere is a cacher beside which another server, without one,
// deletes.
type deletedElsewhere struct {
	settling
	other storage.Interface
}

// Delete implements storage.Interface.
func (d deletedElsewhere) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions) error {
	return d.other.Delete(ctx, key, out, preconditions, validate, cached, opts)
}
