// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kube-watchcache/watchcache/integration/etcdserver"
)

// ownEtcd is an etcd that is a process of its own, with its data in a folder that goes
// with it.
type ownEtcd struct {
	*etcdserver.Server
	dir string
}

func startEtcd(ctx context.Context) (*ownEtcd, error) {
	dir, err := os.MkdirTemp("", "watchcache-bench-")
	if err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	server, err := etcdserver.New(starting, etcdserver.Config{Mode: etcdserver.Process, Dir: dir})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &ownEtcd{server, dir}, nil
}

func (e *ownEtcd) close() error { return errors.Join(e.Close(), os.RemoveAll(e.dir)) }

// client returns a client, which the caller closes.
func (e *ownEtcd) client() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), DialTimeout: time.Minute, Logger: zap.NewNop()})
}
