// SPDX-License-Identifier: Apache-2.0

// Command server is kine on SQLite: the packages of github.com/k3s-io/kine that
// its own command is made of, without the drivers of other databases. The
// command serves until it is killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

func main() {
	socket := flag.String("socket", "", "the unix socket to serve on")
	data := flag.String("data", "", "the SQLite file")
	version := flag.String("emulated-etcd-version", "3.6.11", "what to answer to a client that asks for the version of etcd")
	notify := flag.Duration("watch-progress-notify-interval", 5*time.Second, "the time between progress notifications that nobody asked for")
	retain := flag.Int64("compact-min-retain", 1000, "how many revisions a compaction leaves")
	flag.Parse()
	logrus.SetLevel(logrus.WarnLevel)
	if err := serve(*socket, *data, *version, *notify, *retain); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(socket, data, version string, notify time.Duration, retain int64) error {
	ctx := context.Background()
	_, backend, err := sqlite.New(ctx, &sync.WaitGroup{}, &drivers.Config{
		DataSourceName:   data + "?" + sqlite.DefaultParams,
		CompactTimeout:   5 * time.Second,
		CompactMinRetain: retain,
		CompactBatchSize: 1000,
		PollBatchSize:    500,
	})
	if err != nil {
		return fmt.Errorf("opening %s: %w", data, err)
	}
	if err := backend.Start(ctx); err != nil {
		return fmt.Errorf("starting on %s: %w", data, err)
	}
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	// etcd's clients probe their connections more often than gRPC allows by
	// default.
	grpcServer := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	server.New(backend, "unix", notify, version).Register(grpcServer)
	return grpcServer.Serve(listener)
}
