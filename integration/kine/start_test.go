// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kube-watchcache/watchcache/internal/race"
)

// patience bounds the wait for anything that is sure to happen.
const patience = 3 * time.Minute

// config is what tests change of kine's defaults.
type config struct {
	drivers.Config
	version string        // of etcd, the answer to a client that asks for it
	notify  time.Duration // between progress notifications that nobody requested
}

func compacting(c *config) { c.CompactMinRetain = 0 }

// process is a kine that a test can kill and start again, on the same database and
// socket.
type process struct {
	config config
	socket string
	end    context.CancelFunc // nil: kine does not run
	grpc   *grpc.Server
	ended  sync.WaitGroup
}

// startKine starts kine on an empty database. Kine ends when the test does, and
// reports progress only on request unless told otherwise.
func startKine(t *testing.T, db database, options ...func(*config)) *process {
	t.Helper()
	// A socket's path must be short, t.TempDir's has the name of the test.
	dir, err := os.MkdirTemp("", "kine-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	p := &process{socket: filepath.Join(dir, "kine.sock"), config: config{
		Config: drivers.Config{
			Endpoint:         db.empty(dir),
			CompactTimeout:   5 * time.Second,
			CompactMinRetain: 1000,
			CompactBatchSize: 1000,
			PollInterval:     time.Second,
			PollBatchSize:    500,
		},
		version: "3.6.11",
		notify:  time.Hour,
	}}
	for _, option := range options {
		option(&p.config)
	}
	p.start(t)
	t.Cleanup(p.kill)
	return p
}

// endpoint is what etcd's client connects to.
func (p *process) endpoint() string { return "unix://" + p.socket }

// start starts kine.
func (p *process) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p.end = cancel
	c := p.config.Config
	_, backend, err := drivers.New(ctx, &p.ended, &c)
	require.NoError(t, err)
	require.NoError(t, backend.Start(ctx))
	// etcd's clients probe their connections more often than gRPC allows by
	// default.
	p.grpc = grpc.NewServer(append(serverOptions(), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))...)
	server.New(backend, "unix", p.config.notify, p.config.version).Register(p.grpc)
	listener, err := net.Listen("unix", p.socket)
	require.NoError(t, err)
	p.ended.Go(func() { assert.NoError(t, p.grpc.Serve(listener)) })
}

// serverOptions is empty without the race detector.
func serverOptions() []grpc.ServerOption {
	if !race.Enabled {
		return nil
	}
	return []grpc.ServerOption{grpc.StreamInterceptor(refuseStreamedLists)}
}

// refuseStreamedLists keeps a data race of kine out of the race detector's reports: the
// goroutine that reads a list's rows sets the list's revision again and again, to the same
// value, while the answer is made of it.
func refuseStreamedLists(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == etcdserverpb.KV_RangeStream_FullMethodName {
		return status.Error(codes.Unimplemented, "not under the race detector")
	}
	return handler(srv, stream)
}

// kill ends kine in whatever it is doing: connections are cut, transactions rolled
// back.
func (p *process) kill() {
	if p.end == nil {
		return
	}
	p.end()
	if p.grpc != nil {
		p.grpc.Stop()
	}
	p.ended.Wait()
	p.end, p.grpc = nil, nil
}
