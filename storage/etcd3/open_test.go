// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestOpenAndClose(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints()})
	require.True(t, b.WatchProgress())
	require.NoError(t, b.Healthy(context.Background()))
	_, err := b.Client().Get(testContext(t), "x")
	require.NoError(t, err)

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = b.Close() })
	}
	wg.Wait()
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Healthy(testContext(t)), etcd3.ErrClosed)
	_, err = b.Storage(pods("pods"))
	require.ErrorIs(t, err, etcd3.ErrClosed)
	require.Contains(t, err.Error(), "pods.example.test")
}

func TestHealthySaysWhatIsWrong(t *testing.T) {
	srv := startEtcd(t, embedded.Config{ClientURL: socketURL(t)})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints()})
	require.NoError(t, srv.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err := b.Healthy(ctx)
	require.Error(t, err)
	require.Contains(t, err.Error(), srv.Endpoints()[0])
	require.NotContains(t, err.Error(), "\n")
}

func TestNoEtcdAtTheEndpoint(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	for name, tc := range map[string]struct{ endpoint, want string }{
		"nobody listens":  {"http://" + closed.Addr().String(), "connection refused"},
		"nobody answers":  {"http://" + silent.Addr().String(), "no answer"},
		"without scheme":  {closed.Addr().String(), "connection refused"},
		"no such socket":  {"unix:///no/such/etcd.sock", "no such file"},
		"not even a host": {"http://etcd.invalid:2379", "etcd.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			err := openError(t, etcd3.Config{Endpoints: []string{tc.endpoint}, DialTimeout: 200 * time.Millisecond})
			require.ErrorIs(t, err, etcd3.ErrUnreachable)
			require.NotErrorIs(t, err, etcd3.ErrTLS)
			require.Contains(t, err.Error(), `"`+tc.endpoint+`"`)
			require.Contains(t, err.Error(), "200ms")
			require.Contains(t, err.Error(), tc.want)
		})
	}
}

// One endpoint of several is enough to open, and progress can be relied on: what
// the member at another endpoint reports does not count before it has answered.
func TestEndpointThatComesLater(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	late := socketURL(t)
	core, logs := observer.New(zap.WarnLevel)
	b := open(t, etcd3.Config{Endpoints: []string{srv.Endpoints()[0], late}, Logger: zap.New(core)})
	require.True(t, b.WatchProgress())
	require.NoError(t, b.Healthy(testContext(t)))
	s := newStore(t, b, pods("pods"))
	w := watchAll(t, s, "/pods/", strconv.FormatInt(bump(t, b), 10))
	create(t, s, "/pods/ns/a")
	change(t, w)
	at := uint64(bump(t, b))
	require.NoError(t, s.RequestWatchProgress(testContext(t)))
	e := next(t, w)
	require.Equal(t, watch.Bookmark, e.Type)
	require.GreaterOrEqual(t, rvOf(t, e.Object), at)

	// The member comes up, and is of an old version.
	require.NoError(t, fakeAt(t, late, "3.5.9"))
	require.Eventually(t, func() bool { return !b.WatchProgress() }, deadline, 10*time.Millisecond)
	for _, entry := range logs.FilterMessage("An etcd endpoint does not answer; it is asked again").All() {
		require.Equal(t, late, entry.ContextMap()["endpoint"])
	}
}

// One backend's findings do not apply to another's servers.
func TestProgressBelongsToTheBackend(t *testing.T) {
	fresh := newBackend(t)
	core, logs := observer.New(zap.WarnLevel)
	old := open(t, etcd3.Config{Endpoints: []string{startFake(t, "3.5.9")}, Logger: zap.New(core)})
	require.False(t, old.WatchProgress())
	require.True(t, fresh.WatchProgress())
	again := newBackend(t)
	require.True(t, again.WatchProgress())
	require.False(t, old.WatchProgress())

	warning := logs.FilterFieldKey("version").All()
	require.Len(t, warning, 1)
	require.Equal(t, "3.5.9", warning[0].ContextMap()["version"])

	mixed := open(t, etcd3.Config{Endpoints: []string{startFake(t, "3.6.1"), startFake(t, "3.4.30")}})
	require.False(t, mixed.WatchProgress())
	proxy := open(t, etcd3.Config{Endpoints: []string{startFake(t, unimplemented)}})
	require.False(t, proxy.WatchProgress())
	other := open(t, etcd3.Config{Endpoints: []string{startFake(t, emulated)}})
	require.False(t, other.WatchProgress())
	store := newStore(t, fresh, pods("pods"))
	require.True(t, store.(interface{ WatchProgress() bool }).WatchProgress())
}

func TestTracing(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	spans := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), TracerProvider: provider})
	require.NoError(t, b.Healthy(testContext(t)))
	names := map[string]bool{}
	for _, s := range spans.Ended() {
		names[s.Name()] = true
	}
	require.True(t, names["etcdserverpb.KV/Range"], names)
}
