// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline bounds what a test waits for; it is reached only when a test fails.
const deadline = 3 * time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// start runs a server that is closed with the test.
func start(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	cfg.UnsafeNoFsync = true
	srv, err := embedded.Start(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = srv.Close() })
	return srv
}

// startError runs a server that must not start, and returns why.
func startError(t *testing.T, cfg embedded.Config) error {
	t.Helper()
	srv, err := embedded.Start(testContext(t), cfg)
	if err == nil {
		_ = srv.Close()
	}
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, err.Error(), "\n")
	t.Log(err)
	return err
}

func dial(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func put(t *testing.T, c *clientv3.Client, key, value string) {
	t.Helper()
	_, err := c.Put(testContext(t), key, value)
	require.NoError(t, err)
}

func get(t *testing.T, c *clientv3.Client, key string) string {
	t.Helper()
	resp, err := c.Get(testContext(t), key)
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1, "key %q", key)
	return string(resp.Kvs[0].Value)
}
