// SPDX-License-Identifier: Apache-2.0

//go:build !noembeddedetcd

package devserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// maxSocketPath is the longest path of a unix socket that every system accepts.
const maxSocketPath = 100

// embeddedEtcd is an etcd inside the process and the directory of its socket.
type embeddedEtcd struct {
	*embedded.Server
	socketDir string
	temporary bool
}

// startEtcd starts an etcd on the data in dir/etcd. The etcd listens on a unix
// socket in a directory that only its owner may enter, because etcd itself asks
// nobody who they are.
func startEtcd(ctx context.Context, dir string, logger *zap.Logger) (etcdServer, error) {
	socketDir, temporary, err := makeSocketDir(dir)
	if err != nil {
		return nil, fmt.Errorf("making a directory for etcd's socket: %w", err)
	}
	server, err := embedded.Start(ctx, embedded.Config{
		Dir:       filepath.Join(dir, etcdName),
		ClientURL: "unix://" + filepath.Join(socketDir, "etcd.sock"),
		Logger:    logger,
	})
	etcd := &embeddedEtcd{Server: server, socketDir: socketDir, temporary: temporary}
	if err != nil {
		etcd.removeSocketDir()
		return nil, err
	}
	return etcd, nil
}

// makeSocketDir makes dir/sock, or a temporary directory where that path is too
// long for a socket.
func makeSocketDir(dir string) (path string, temporary bool, err error) {
	path, err = filepath.Abs(filepath.Join(dir, "sock"))
	if err != nil {
		return "", false, err
	}
	if len(path) > maxSocketPath-len("/etcd.sock") {
		path, err = os.MkdirTemp("", "devserver-etcd-")
		return path, true, err
	}
	return path, false, makePrivateDir(path)
}

// Close stops etcd and removes a temporary socket directory.
func (e *embeddedEtcd) Close() error {
	err := e.Server.Close()
	e.removeSocketDir()
	return err
}

func (e *embeddedEtcd) removeSocketDir() {
	if e.temporary {
		_ = os.RemoveAll(e.socketDir)
	}
}
