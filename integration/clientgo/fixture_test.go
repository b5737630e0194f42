// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/proxy"
)

// bookmarkInterval is what the fixtures' caches are configured with: idle watches
// hear from their server this often.
const bookmarkInterval = time.Second

// windowBytes makes the fixtures' windows small: about 110 events.
const windowBytes = 128 << 10

// fixture is one etcd, one API server with our cache on it, the proxy between the
// server and its clients, and everything needed to disturb and to check them.
// Methods are for one goroutine at a time, but for cacher, proxied and the clients.
type fixture struct {
	etcd  *etcdserver.Server
	keys  *clientv3.Client // of that etcd
	proxy *proxy.Proxy
	dir   string
	mu    struct {
		sync.Mutex
		server *apiserver
	}
}

// newFixture makes a fixture that ends with the test and must leave no goroutine behind.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	noLeaks(t)
	require.NoError(t, etcdserver.Prepare(etcdMode()))
	fx, err := open(within(t), t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fx.close()) })
	return fx
}

// etcdMode is the mode that ETCD_MODE demands, or embedded: a process takes 7 s
// to stop while a client watches.
func etcdMode() etcdserver.Mode {
	if os.Getenv("ETCD_MODE") != "" {
		return ""
	}
	return etcdserver.Embedded
}

// open starts a fixture that keeps its files in dir. The caller closes it.
func open(ctx context.Context, dir string) (_ *fixture, err error) {
	fx := &fixture{dir: filepath.Join(dir, "run")}
	defer func() {
		if err != nil {
			err = errors.Join(err, fx.close())
		}
	}()
	if fx.etcd, err = etcdserver.New(ctx, etcdserver.Config{Dir: dir, Mode: etcdMode()}); err != nil {
		return nil, err
	}
	fx.keys, err = clientv3.New(clientv3.Config{Endpoints: fx.etcd.Endpoints(), DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	if fx.proxy, err = proxy.Listen("", nil); err != nil {
		return nil, err
	}
	return fx, fx.start(ctx)
}

// start starts a server and sends clients there.
func (fx *fixture) start(ctx context.Context) error {
	s, err := startServer(ctx, fx.dir, fx.etcd.Endpoints(), cacher.Configure(func(c *cacher.Config) {
		c.BookmarkInterval, c.WindowBytes = bookmarkInterval, windowBytes
	}))
	if err != nil {
		return err
	}
	fx.mu.Lock()
	defer fx.mu.Unlock()
	fx.mu.server = s
	fx.proxy.Forward(s.address)
	return nil
}

// close ends everything, the clients' connections first.
func (fx *fixture) close() error {
	var errs []error
	if fx.proxy != nil {
		errs = append(errs, fx.proxy.Close())
	}
	if s := fx.server(); s != nil {
		errs = append(errs, s.stop())
	}
	if fx.keys != nil {
		errs = append(errs, fx.keys.Close())
	}
	if fx.etcd != nil {
		errs = append(errs, fx.etcd.Close())
	}
	return errors.Join(errs...)
}

func (fx *fixture) server() *apiserver {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	return fx.mu.server
}

// cacher is the cache of the server that runs now; while the server restarts, that
// of the last one, which is stopped.
func (fx *fixture) cacher() *cacher.Cacher { return fx.server().cacher }

// proxied says how to reach the server through the proxy, over HTTPS. The
// configuration is valid across restarts. Clients of two calls share no
// connection.
func (fx *fixture) proxied() *restclient.Config {
	return fx.reaching(func() string { return fx.proxy.Address() })
}

// direct says how to reach the server past the proxy: for what tests do on their
// own behalf while the proxy is cut. The configuration is valid across
// restarts.
func (fx *fixture) direct() *restclient.Config {
	return fx.reaching(func() string { return fx.server().address })
}

func (fx *fixture) reaching(address func() string) *restclient.Config {
	config := restclient.CopyConfig(fx.server().client)
	config.Host = "https://" + fx.proxy.Address()
	config.QPS = -1 // no limit
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address())
	}
	return config
}

// client gives a typed client on connections of its own, through the proxy. They
// are closed with the test.
func (fx *fixture) client(t *testing.T) *versioned.Clientset {
	t.Helper()
	return clientset(t, fx.proxied())
}

// dynamic gives a dynamic client in the same way.
func (fx *fixture) dynamic(t *testing.T) *dynamic.DynamicClient {
	t.Helper()
	config := fx.proxied()
	client, err := dynamic.NewForConfigAndClient(config, connections(t, config))
	require.NoError(t, err)
	return client
}

// clientset gives a typed client on connections of its own.
func clientset(t *testing.T, config *restclient.Config) *versioned.Clientset {
	t.Helper()
	client, err := versioned.NewForConfigAndClient(config, connections(t, config))
	require.NoError(t, err)
	return client
}

// connections gives a client whose connections end with the test, busy or not.
func connections(t *testing.T, config *restclient.Config) *http.Client {
	t.Helper()
	var mu sync.Mutex
	var open []net.Conn
	dial := config.Dial
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			open = append(open, conn)
		}
		return conn, err
	}
	client, err := restclient.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		client.CloseIdleConnections()
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	return client
}
