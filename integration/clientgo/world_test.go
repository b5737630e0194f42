// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
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
)

// bookmarkInterval is what the worlds' caches are configured with: idle watches
// hear from their server this often.
const bookmarkInterval = time.Second

// windowBytes makes the worlds' windows small: about 110 events.
const windowBytes = 128 << 10

// world is one etcd, one API server with our cache on it, the proxy between the
// server and its clients, and everything needed to disturb and to check them.
// Methods are for one goroutine at a time, but for cacher, proxied and the clients.
type world struct {
	etcd    *etcdserver.Server
	keys    *clientv3.Client // of that etcd
	proxy   *proxy
	dir     string
	options []cacher.Option
	mu      struct {
		sync.Mutex
		server *apiserver
	}
}

// newWorld makes a world of the test's own, for tests that disturb it. It wants
// the world to leave no goroutine behind. The options come after those that all
// worlds have (a short bookmarkInterval, a small window).
func newWorld(t *testing.T, options ...cacher.Option) *world {
	t.Helper()
	noLeaks(t)
	w, err := open(within(t), t.TempDir(), options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close()) })
	return w
}

// shared is the world of all tests that do not disturb it: making one is expensive.
var shared struct {
	once  sync.Once
	dir   string
	world *world
	err   error
}

// theWorld gives the shared world. A test that uses it keeps to namespaces of its
// own (newNamespace), restarts nothing, and cuts connections only if no test runs
// beside it.
func theWorld(t *testing.T) *world {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "watchcache-clientgo-"); shared.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		shared.world, shared.err = open(ctx, shared.dir)
	})
	require.NoError(t, shared.err)
	return shared.world
}

// closeShared ends the shared world, if there is one.
func closeShared() error {
	var err error
	if shared.world != nil {
		err = shared.world.close()
	}
	return errors.Join(err, os.RemoveAll(shared.dir))
}

// open starts a world that keeps its files in dir. The caller closes it.
func open(ctx context.Context, dir string, options ...cacher.Option) (_ *world, err error) {
	w := &world{dir: filepath.Join(dir, "run")}
	w.options = append([]cacher.Option{
		cacher.WithBookmarkInterval(bookmarkInterval), cacher.WithWindowBytes(windowBytes),
	}, options...)
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	config := etcdserver.Config{Dir: dir}
	if os.Getenv("ETCD_MODE") == "" {
		// A process takes 7 s to stop while somebody watches.
		config.Mode = etcdserver.Embedded
	}
	if w.etcd, err = etcdserver.New(ctx, config); err != nil {
		return nil, err
	}
	w.keys, err = clientv3.New(clientv3.Config{Endpoints: w.etcd.Endpoints(), DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	if w.proxy, err = newProxy(); err != nil {
		return nil, err
	}
	return w, w.start(ctx)
}

// start starts a server and sends clients there.
func (w *world) start(ctx context.Context) error {
	s, err := startServer(ctx, w.dir, w.etcd.Endpoints(), w.options...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.server = s
	w.proxy.forward(s.address)
	return nil
}

// close ends everything, the clients' connections first.
func (w *world) close() error {
	var errs []error
	if w.proxy != nil {
		errs = append(errs, w.proxy.close())
	}
	if s := w.server(); s != nil {
		errs = append(errs, s.stop())
	}
	if w.keys != nil {
		errs = append(errs, w.keys.Close())
	}
	if w.etcd != nil {
		errs = append(errs, w.etcd.Close())
	}
	return errors.Join(errs...)
}

func (w *world) server() *apiserver {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.server
}

// cacher is the cache of the server that runs now; while the server restarts, that
// of the last one, which is stopped.
func (w *world) cacher() *cacher.Cacher { return w.server().cacher }

// settle waits until the server's cache has reached the resourceVersion of a write,
// so that reads of any version, which is what informers begin with, have it.
func (w *world) settle(t *testing.T, resourceVersion string) {
	t.Helper()
	eventually(t, "the cache does not get there", func(context.Context) error {
		if at := w.cacher().Status().ResourceVersion; at < number(t, resourceVersion) {
			return fmt.Errorf("it is at %d, before %s", at, resourceVersion)
		}
		return nil
	})
}

// proxied says how to reach the server through the proxy, over HTTPS. It is valid
// across restarts. Clients of two calls share no connection.
func (w *world) proxied() *restclient.Config {
	return w.reaching(func() string { return w.proxy.address() })
}

// direct says how to reach the server past the proxy: for what tests do on their
// own behalf while the proxy is cut. It is valid across restarts.
func (w *world) direct() *restclient.Config {
	return w.reaching(func() string { return w.server().address })
}

func (w *world) reaching(address func() string) *restclient.Config {
	config := restclient.CopyConfig(w.server().client)
	config.Host = "https://" + w.proxy.address()
	config.QPS = -1 // no limit
	config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address())
	}
	return config
}

// client gives a typed client on connections of its own, through the proxy. They
// are closed with the test.
func (w *world) client(t *testing.T) *versioned.Clientset {
	t.Helper()
	return clientset(t, w.proxied())
}

// dynamic gives a dynamic client in the same way.
func (w *world) dynamic(t *testing.T) *dynamic.DynamicClient {
	t.Helper()
	config := w.proxied()
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
