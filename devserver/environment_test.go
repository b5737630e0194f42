// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpenAndClose(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for range 2 {
		env, err := Open(context.Background(), Config{Dir: dir, BindAddress: loopback, Etcd: true})
		require.NoError(t, err)
		require.NotEmpty(t, env.Endpoints())
		require.Equal(t, "https://"+env.listener.Addr().String(), env.URL())
		name, err := env.writeKubeconfig()
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, "kubeconfig"), name)

		_, err = Open(context.Background(), Config{Dir: dir, BindAddress: loopback})
		require.ErrorContains(t, err, "--run-dir "+dir)
		require.ErrorContains(t, err, "another server")

		require.NoError(t, env.Close())
		require.NoError(t, env.Close())
		require.DirExists(t, filepath.Join(dir, "etcd"))
		require.FileExists(t, name)
	}
}

// TestSocketIsPrivate: etcd trusts whoever can connect, so only we can.
func TestSocketIsPrivate(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	socketDir, temporary, err := makeSocketDir(dir)
	require.NoError(t, err)
	if temporary {
		t.Cleanup(func() { os.RemoveAll(socketDir) })
	}
	info, err := os.Stat(socketDir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestLongRunDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	t.Setenv("TMPDIR", shortDir(t))
	env, err := Open(context.Background(), Config{Dir: dir, BindAddress: loopback, Etcd: true})
	require.NoError(t, err)
	require.NoError(t, env.Close())
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left, "the temporary socket directory is gone")
}

// shortDir is a temporary directory whose name fits into a socket's.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "run")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// TestOpenErrors: each names the flag, and leaves neither a directory nor a lock.
func TestOpenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	base := t.TempDir()
	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	dir := filepath.Join(base, "run")

	for want, config := range map[string]Config{
		"--run-dir is required":                          {BindAddress: loopback},
		"--bind-address: 0.0.0.0":                        {Dir: dir, BindAddress: net.IPv4zero},
		"--secure-port ":                                 {Dir: dir, BindAddress: loopback, Port: port},
		"--run-dir " + file + ": ":                       {Dir: file, BindAddress: loopback},
		"--run-dir " + filepath.Join(file, "run") + ": ": {Dir: filepath.Join(file, "run"), BindAddress: loopback},
	} {
		_, err := Open(context.Background(), config)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
		require.NoDirExists(t, dir)
	}

	env, err := Open(context.Background(), Config{Dir: dir, BindAddress: loopback})
	require.NoError(t, err)
	require.Nil(t, env.Endpoints())
	require.NoError(t, env.watchEtcd(context.Background()), "there is no etcd to watch")
	require.NoError(t, env.Close())
}
