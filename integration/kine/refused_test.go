// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRefused: what etcd does and kine does not. The cache asks for none of it;
// k8s.io/apiserver's storage tries to stream lists and then asks for pages.
func TestRefused(t *testing.T) { onEach(t, testRefused) }

func testRefused(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
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
