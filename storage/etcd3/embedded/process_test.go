// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// childDir is the environment variable that makes this test program run a
// server on the directory in it, write a key, say "ready", and stay.
const childDir = "WATCHCACHE_EMBEDDED_TEST_DIR"

func runChild(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	srv, err := embedded.Start(ctx, embedded.Config{Dir: dir})
	if err == nil {
		var c *clientv3.Client
		if c, err = clientv3.New(clientv3.Config{Endpoints: srv.Endpoints(), Logger: zap.NewNop()}); err == nil {
			_, err = c.Put(ctx, "k", "v")
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	<-ctx.Done()
}

// Another process holds the directory while it lives, and not after it was
// killed; what it had written is there.
func TestOtherProcess(t *testing.T) {
	dir := t.TempDir()
	child := exec.CommandContext(testContext(t), os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	said, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", said)

	require.ErrorIs(t, startError(t, embedded.Config{Dir: dir}), embedded.ErrDirInUse)

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	srv := start(t, embedded.Config{Dir: dir})
	require.Equal(t, "v", get(t, dial(t, srv.Endpoints()...), "k"))
}
