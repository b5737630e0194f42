// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	_ "github.com/k3s-io/kine/pkg/drivers/pgsql"
	_ "github.com/k3s-io/kine/pkg/drivers/sqlite"
	kine "github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// serveKine serves kine on a socket until the context ends. docs/adopting.md leads here.
func serveKine(ctx context.Context, running *sync.WaitGroup, database, socket string, options ...grpc.ServerOption) error {
	_, backend, err := drivers.New(ctx, running, &drivers.Config{
		Endpoint:     database,
		PollInterval: time.Second, PollBatchSize: 500,
		CompactTimeout: 5 * time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000,
	})
	if err != nil {
		return err
	}
	if err := backend.Start(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(append(options, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))...)
	kine.New(backend, "unix", 5*time.Second, "3.5.0").Register(server)
	context.AfterFunc(ctx, server.Stop)
	running.Go(func() { _ = server.Serve(listener) })
	return nil
}
