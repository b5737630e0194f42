// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

func TestStartServesAndCloses(t *testing.T) {
	srv := start(t, embedded.Config{Dir: filepath.Join(t.TempDir(), "made", "here")})
	require.Len(t, srv.Endpoints(), 1)
	require.True(t, strings.HasPrefix(srv.Endpoints()[0], "http://127.0.0.1:"), srv.Endpoints())

	c := dial(t, srv.Endpoints()...)
	put(t, c, "a", "1")
	require.Equal(t, "1", get(t, c, "a"))
	select {
	case <-srv.Done():
		require.FailNow(t, "Done while it runs")
	default:
	}
	require.NoError(t, srv.Err())

	// The address that the member publishes is the one it listens on.
	members, err := c.MemberList(testContext(t))
	require.NoError(t, err)
	require.Equal(t, srv.Endpoints(), members.Members[0].ClientURLs)

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = srv.Close() })
	}
	wg.Wait()
	require.NoError(t, srv.Close())
	<-srv.Done()
	require.NoError(t, srv.Err())
}

// A server that is closed and started again on its directory has its data, and
// a watch that was open meanwhile goes on without a gap.
func TestRestartKeepsDataAndWatches(t *testing.T) {
	cfg := embedded.Config{Dir: t.TempDir(), ClientURL: "unix://" + filepath.Join(t.TempDir(), "etcd.sock")}
	first := start(t, cfg)
	c := dial(t, first.Endpoints()...)
	put(t, c, "k", "1")
	events := c.Watch(testContext(t), "k", clientv3.WithRev(1))
	require.Equal(t, "1", string((<-events).Events[0].Kv.Value))
	require.NoError(t, first.Close())

	second := start(t, cfg)
	require.Equal(t, first.Endpoints(), second.Endpoints())
	require.Equal(t, "1", get(t, c, "k"))
	put(t, c, "k", "2")
	next := <-events
	require.NoError(t, next.Err())
	require.Equal(t, "2", string(next.Events[0].Kv.Value))

	// Closed with the watch still open.
	require.NoError(t, second.Close())
}

func TestLogger(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	srv := start(t, embedded.Config{Dir: t.TempDir(), Logger: zap.New(core)})
	require.NoError(t, srv.Close())
	require.NotZero(t, logs.FilterMessage("ready to serve client requests").Len())
}

func TestSilentByDefault(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = out, out
	srv, err := embedded.Start(testContext(t), embedded.Config{Dir: t.TempDir()})
	if err == nil {
		err = srv.Close()
	}
	os.Stdout, os.Stderr = stdout, stderr
	require.NoError(t, err)
	written, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	require.Empty(t, string(written))
}
