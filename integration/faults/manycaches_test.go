// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// dialed counts the connections that are open, and the most that were at a time.
type dialed struct{ open, most atomic.Int64 }

func (d *dialed) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	for now := d.open.Add(1); ; {
		most := d.most.Load()
		if now <= most || d.most.CompareAndSwap(most, now) {
			break
		}
	}
	return &dialedConn{Conn: conn, close: sync.OnceFunc(func() { d.open.Add(-1) })}, nil
}

type dialedConn struct {
	net.Conn
	close func()
}

func (c *dialedConn) Close() error {
	c.close()
	return c.Conn.Close()
}

// oneOfMany is the cache of one of many resources.
type oneOfMany struct {
	*cacher.Cacher
	prefix string
}

func newOneOfMany(t *testing.T, backend *etcd3.Backend, n int) oneOfMany {
	t.Helper()
	resource := schema.GroupResource{Group: "example.test", Resource: fmt.Sprintf("kind-%04d", n)}
	c := oneOfMany{prefix: "/" + resource.Resource + "/"}
	codec := poddata.Codec()
	raw, err := backend.Storage(etcd3.ResourceConfig{
		GroupResource: resource, ResourcePrefix: c.prefix, Codec: codec, NewFunc: poddata.New, NewListFunc: poddata.NewList,
	})
	require.NoError(t, err)
	c.Cacher, err = cacher.New(cacher.Config{
		Storage: raw, Versioner: storage.APIObjectVersioner{}, GroupResource: resource, ResourcePrefix: c.prefix,
		KeyFunc:      func(object runtime.Object) (string, error) { return storage.NamespaceKeyFunc(c.prefix, object) },
		GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: codec,
	})
	require.NoError(t, err)
	return c
}

// use writes, gets and lists an object.
func (c oneOfMany) use(t *testing.T, ctx context.Context) {
	t.Helper()
	key, created := c.prefix+"ns/a", &example.Pod{}
	require.NoError(t, c.Create(ctx, key, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}, created, 0))
	got := &example.Pod{}
	require.NoError(t, c.Get(ctx, key, storage.GetOptions{}, got))
	require.Equal(t, created.ResourceVersion, got.ResourceVersion)
	list := &example.PodList{}
	require.NoError(t, c.GetList(ctx, c.prefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
	require.Len(t, list.Items, 1)
}

// REGRESSIONS 197: a thousand caches over an etcd that allows a hundred streams on a
// connection. All become ready, and serve reads and writes, on a hundredth as many
// connections.
func TestThousandCaches(t *testing.T) {
	const caches, streams = 1000, 100
	server := etcdserver.Start(t, etcdserver.Config{Streams: streams, Mode: etcdserver.Process})
	noLeaks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	var connections dialed
	backend, err := etcd3.Open(ctx, etcd3.Config{
		Endpoints: server.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(connections.dial)},
	})
	require.NoError(t, err)
	defer backend.Close()
	all := make([]oneOfMany, caches)
	began := time.Now()
	for n := range all {
		all[n] = newOneOfMany(t, backend, n)
		defer all[n].Stop()
	}
	for _, c := range all {
		require.NoError(t, c.Wait(ctx))
	}
	fmt.Printf("%d caches were ready after %v\n", caches, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	for _, c := range all {
		c.use(t, ctx)
	}
	most, open := connections.most.Load(), connections.open.Load()
	fmt.Printf("a write, a GET and a consistent LIST of each took %v in all; %d connections, %d at most\n", time.Since(began).Round(time.Millisecond), open, most)
	// A connection for requests, those of the caches' watches, and a few for the watches
	// that fetch history.
	require.LessOrEqual(t, most, int64(1+caches/streams*3/2))
	require.GreaterOrEqual(t, open, int64(1+caches/streams))
}
