// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// unimplemented makes startFake's server return Unimplemented.
	unimplemented = "unimplemented"
	// emulated makes the server report a version without a cluster ID, as other
	// databases that speak etcd's protocol do.
	emulated = "3.6.11"
)

// startFake serves as an etcd of any version that can do nothing but tell it,
// and returns its endpoint.
func startFake(t *testing.T, version string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serveFake(t, l, version)
	return "http://" + l.Addr().String()
}

// fakeAt serves as startFake does, at a unix:// endpoint.
func fakeAt(t *testing.T, endpoint, version string) error {
	t.Helper()
	l, err := net.Listen("unix", strings.TrimPrefix(endpoint, "unix://"))
	if err == nil {
		serveFake(t, l, version)
	}
	return err
}

func serveFake(t *testing.T, l net.Listener, version string) {
	srv := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(srv, fakeEtcd{version: version})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
}

type fakeEtcd struct {
	etcdserverpb.UnimplementedMaintenanceServer
	version string
}

func (f fakeEtcd) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	if f.version == unimplemented {
		return nil, status.Error(codes.Unimplemented, "what?")
	}
	header := &etcdserverpb.ResponseHeader{ClusterId: 1}
	if f.version == emulated {
		header = nil
	}
	return &etcdserverpb.StatusResponse{Header: header, Version: f.version}, nil
}
