// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"path"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// REGRESSIONS 111: a member that does not answer does not make a server unready
// whose reads are answered by the others.
func TestHealthyWithOneMemberAway(t *testing.T) {
	var broken atomic.Bool
	var calls atomic.Int32
	hang := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if broken.Load() && path.Base(method) == "Range" && calls.Add(1) == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	srv := startEtcd(t, embedded.Config{})
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(hang)}})
	broken.Store(true)
	require.NoError(t, b.Healthy(context.Background()))
	require.GreaterOrEqual(t, calls.Load(), int32(2))
}
