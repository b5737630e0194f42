// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRefused: what etcd does and kine does not. The cache asks for none of it;
// k8s.io/apiserver's storage tries to stream lists and then asks for pages.
func TestRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, startKine(t, silent), noProgress)
	client, ctx := f.client(), f.ctx
	for _, request := range []struct {
		name string
		code codes.Code
		send func() error
	}{
		{"a transaction on two keys", codes.InvalidArgument, func() error {
			_, err := client.Txn(ctx).Then(clientv3.OpPut("/a", "1"), clientv3.OpPut("/b", "1")).Commit()
			return err
		}},
		{"delete without a transaction", codes.Unimplemented, func() error {
			_, err := client.Delete(ctx, "/a", clientv3.WithPrefix())
			return err
		}},
		{"serializable read", codes.Unimplemented, func() error {
			_, err := client.Get(ctx, "/a", clientv3.WithSerializable())
			return err
		}},
		{"sorted read", codes.Unimplemented, func() error {
			_, err := client.Get(ctx, "/a", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
			return err
		}},
		{"read since a revision", codes.Unimplemented, func() error {
			_, err := client.Get(ctx, "/a", clientv3.WithPrefix(), clientv3.WithMinModRev(1))
			return err
		}},
		{"streamed read", codes.Unimplemented, func() error {
			stream, err := etcdserverpb.NewKVClient(client.ActiveConnection()).RangeStream(ctx, &etcdserverpb.RangeRequest{Key: []byte("/a")})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}},
		{"the time that a lease has left", codes.Unknown, func() error {
			_, err := client.TimeToLive(ctx, 1)
			return err
		}},
		{"defragmentation", codes.Unknown, func() error {
			_, err := client.Defragment(ctx, f.kine.endpoint())
			return err
		}},
	} {
		t.Run(request.name, func(t *testing.T) {
			err := request.send()
			require.Error(t, err)
			require.Equal(t, request.code, codeOf(err), "%v", err)
		})
	}
}

// codeOf is an error's gRPC code; the client wraps those that etcd knows.
func codeOf(err error) codes.Code {
	if coded, ok := err.(interface{ Code() codes.Code }); ok {
		return coded.Code()
	}
	return status.Code(err)
}

// TestPut: kine acknowledges a put of a key that is there and does not store it,
// unless the key was the last to be written.
func TestPut(t *testing.T) {
	t.Parallel()
	f := newFixture(t, startKine(t, silent), noProgress)
	_, err := create(f.ctx, f.client(), "/a")
	require.NoError(t, err)
	_, err = create(f.ctx, f.client(), "/b")
	require.NoError(t, err)
	_, err = f.client().Put(f.ctx, "/a", "changed")
	require.NoError(t, err)
	got, err := f.client().Get(f.ctx, "/a")
	require.NoError(t, err)
	require.Equal(t, "value", string(got.Kvs[0].Value))
}
