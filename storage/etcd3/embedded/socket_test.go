// SPDX-License-Identifier: Apache-2.0

//go:build unix

package embedded_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// withUmask sets the process's umask for the test.
func withUmask(t *testing.T, mask int) {
	before := syscall.Umask(mask)
	t.Cleanup(func() { syscall.Umask(before) })
}

// Nobody but the owner reaches the server, whatever the umask, from the first
// moment that there is a socket.
func TestSocketIsPrivate(t *testing.T) {
	for name, mask := range map[string]int{"a umask that takes nothing": 0, "the usual umask": 0o022} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			socket := filepath.Join(dir, "etcd.sock")
			stop, seen := make(chan struct{}), make(chan map[fs.FileMode]int)
			go func() {
				modes := make(map[fs.FileMode]int)
				for {
					if info, err := os.Lstat(socket); err == nil {
						modes[info.Mode()]++
					}
					select {
					case <-stop:
						seen <- modes
						return
					default:
					}
				}
			}()
			withUmask(t, mask)
			srv := start(t, embedded.Config{Dir: t.TempDir(), ClientURL: "unix://" + socket})
			info, err := os.Lstat(socket)
			require.NoError(t, err)
			require.Equal(t, fs.ModeSocket|0o600, info.Mode())
			put(t, dial(t, srv.Endpoints()...), "k", "v")
			close(stop)
			for mode := range <-seen {
				require.Equal(t, fs.ModeSocket|0o600, mode, "for a moment")
			}
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1, "nothing but the socket")
			require.NoError(t, srv.Close())
			left, err = os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestSocketWithoutADirectory(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none", "etcd.sock")
	err := startError(t, embedded.Config{Dir: t.TempDir(), ClientURL: "unix://" + socket})
	require.ErrorContains(t, err, socket)
	require.True(t, errors.Is(err, fs.ErrNotExist), err)
}
