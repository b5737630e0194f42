// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// startNarrowEtcd runs an etcd that allows so many streams on a connection.
func startNarrowEtcd(t *testing.T, streams uint32) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	client := url.URL{Scheme: "http", Host: free.Addr().String()}
	require.NoError(t, free.Close())
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync, cfg.MaxConcurrentStreams = t.TempDir(), true, streams
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	etcd, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-testContext(t).Done():
		require.FailNow(t, "etcd is not ready")
	}
	return client.String()
}

// connections counts the open connections of a client. Set dial as its dialer.
type connections struct{ open atomic.Int64 }

func (c *connections) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// REGRESSIONS 197: an etcd, or a proxy before it, allows few streams on a connection. All
// watches open all the same, on as few connections as that takes, and no request waits
// behind them. A limit below what is usual is logged once.
func TestMoreWatchesThanAConnectionAllows(t *testing.T) {
	for _, c := range []struct{ allowed, watches, connections, lines int }{
		{allowed: 100, watches: 250, connections: 3},
		{allowed: 10, watches: 35, connections: 4, lines: 1},
	} {
		t.Run(strconv.Itoa(c.allowed), func(t *testing.T) {
			lines, logged := observer.New(zapcore.WarnLevel)
			var dialed connections
			b := open(t, etcd3.Config{
				Endpoints: []string{startNarrowEtcd(t, uint32(c.allowed))}, Logger: zap.New(lines),
				DialOptions: []grpc.DialOption{grpc.WithContextDialer(dialed.dial)},
			})
			s := newStore(t, b, pods("pods"))
			rv := strconv.FormatInt(bump(t, b), 10)
			watches := make([]watch.Interface, c.watches)
			for n := range watches {
				watches[n], _ = watchOn(t, s, fmt.Sprint(n), rv)
			}
			create(t, s, "/pods/ns/a")
			for _, w := range watches {
				require.Equal(t, watch.Added, change(t, w).Type)
			}
			_, err := s.GetCurrentResourceVersion(testContext(t))
			require.NoError(t, err)
			// One for requests; those that ask members for their versions end.
			require.Eventually(t, func() bool { return dialed.open.Load() <= int64(c.connections)+1 }, deadline, time.Millisecond,
				"connections")
			require.Equal(t, int64(c.connections)+1, dialed.open.Load())
			said := 0
			for _, line := range logged.All() {
				if strings.Contains(line.Message, "streams") {
					said++
					require.Equal(t, int64(c.allowed), line.ContextMap()["streams"])
				}
			}
			require.Equal(t, c.lines, said, "%v", logged.All())
		})
	}
}
