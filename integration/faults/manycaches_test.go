// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/internal/klogzap"
	"github.com/kube-watchcache/watchcache/internal/poddata"
	"github.com/kube-watchcache/watchcache/server"
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

func newOneOfMany(t *testing.T, backend *etcd3.Backend, n int, timeout time.Duration) oneOfMany {
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
		GetAttrsFunc: poddata.Attrs, NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: codec, StorageTimeout: timeout,
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
	etcd := etcdserver.Start(t, etcdserver.Config{Streams: streams, Mode: etcdserver.Process})
	noLeaks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	var connections dialed
	backend, err := etcd3.Open(ctx, etcd3.Config{
		Endpoints: etcd.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(connections.dial)},
	})
	require.NoError(t, err)
	defer backend.Close()
	all := make([]oneOfMany, caches)
	began := time.Now()
	for n := range all {
		all[n] = newOneOfMany(t, backend, n, 0)
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

// logged is the different lines that klog writes: it writes errors several times.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		if !slices.Contains(l.lines, line) {
			l.lines = append(l.lines, line)
		}
	}
	return len(p), nil
}

func (l *logged) all() []string {
	klog.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// REGRESSIONS 198: an etcd under many caches stands still, until all have lost it, and goes
// on. The log has a line when it is lost and one when it is back, whoever stands on it.
func TestOutageIsLoggedOnce(t *testing.T) {
	const caches = 61
	etcd := etcdserver.Start(t, etcdserver.Config{Mode: etcdserver.Process})
	noLeaks(t)
	server.QuietGRPC()
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	backend, err := etcd3.Open(ctx, etcd3.Config{Endpoints: etcd.Endpoints(), Logger: klogzap.New(zap.WarnLevel, 4, "etcd-client")})
	require.NoError(t, err)
	defer backend.Close()
	all := make([]oneOfMany, caches)
	for n := range all {
		all[n] = newOneOfMany(t, backend, n, 2*time.Second)
		defer all[n].Stop()
	}
	for _, c := range all {
		require.NoError(t, c.Wait(ctx))
	}
	log := &logged{}
	t.Cleanup(func() { klog.LogToStderr(true) })
	klog.LogToStderr(false)
	klog.SetOutput(log)
	count := func() (lost int) {
		for _, c := range all {
			if c.Status().Lost != nil {
				lost++
			}
		}
		return lost
	}
	for outage := range 2 {
		before := len(log.all())
		require.NoError(t, etcd.Pause(ctx))
		poll(t, "not all caches have lost etcd", func() bool { return count() == caches })
		require.NoError(t, etcd.Resume(ctx))
		poll(t, "not all caches have etcd again", func() bool { return count() == 0 && len(log.all()) > before })
		poll(t, "the log does not say that etcd is back", func() bool { return strings.Contains(strings.Join(log.all()[before:], ""), "answers again") })
		lines := log.all()[before:]
		require.Len(t, lines, 2, "outage %d: %d lines, the first are %s", outage, len(lines), lines[:min(5, len(lines))])
		require.Contains(t, lines[0], "Storage does not answer")
		require.Contains(t, lines[1], "Storage answers again")
		for _, line := range lines {
			require.Contains(t, line, fmt.Sprintf("resources=%d", caches))
		}
	}
}
