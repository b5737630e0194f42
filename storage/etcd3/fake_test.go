// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unimplemented makes startFake's server not know the question.
const unimplemented = "unimplemented"

// startFake serves as an etcd of any version that can do nothing but tell it,
// and returns its endpoint.
func startFake(t *testing.T, version string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
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
	return "http://" + l.Addr().String()
}

type fakeEtcd struct {
	etcdserverpb.UnimplementedMaintenanceServer
	version string
}

func (f fakeEtcd) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	if f.version == unimplemented {
		return nil, status.Error(codes.Unimplemented, "what?")
	}
	return &etcdserverpb.StatusResponse{Version: f.version}, nil
}
