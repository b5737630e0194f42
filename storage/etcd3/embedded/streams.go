// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streams ends the server's open streams, mostly watches, when the server shuts
// down. Without it, etcd would wait for the clients to end them, for more than
// five seconds, on every Close.
type streams struct {
	ctx context.Context
	end context.CancelFunc
}

func newStreams() *streams {
	ctx, end := context.WithCancel(context.Background())
	return &streams{ctx: ctx, end: end}
}

// intercept is a grpc.StreamServerInterceptor. The client gets Unavailable, as
// when a connection breaks, and tries again, so that its watches resume when
// the server is started again.
func (s *streams) intercept(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := handler(srv, stoppableStream{ServerStream: ss, ctx: ctx})
	if s.ctx.Err() != nil {
		return status.Error(codes.Unavailable, "etcdserver: server stopped")
	}
	return err
}

type stoppableStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stoppableStream) Context() context.Context { return s.ctx }
