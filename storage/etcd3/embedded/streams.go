// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streams ends the server's open streams, mostly watches, on shutdown. Otherwise every Close would
// wait more than five seconds for the clients to end them.
type streams struct {
	ctx context.Context
	end context.CancelFunc
}

func newStreams() *streams {
	ctx, end := context.WithCancel(context.Background())
	return &streams{ctx: ctx, end: end}
}

// intercept is a grpc.StreamServerInterceptor. At shutdown it returns Unavailable, as for a broken
// connection, so that clients retry and their watches resume after a restart.
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
