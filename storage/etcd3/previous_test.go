// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// forgetfulStream delivers one response without previous values, as etcd does
// right after a watch was created.
type forgetfulStream struct {
	grpc.ClientStream
	ctx    context.Context
	events []*mvccpb.Event
}

func (s forgetfulStream) Context() context.Context { return s.ctx }

func (forgetfulStream) SendMsg(any) error { return nil }

func (s forgetfulStream) RecvMsg(m any) error {
	proto.Merge(m.(*etcdserverpb.WatchResponse), &etcdserverpb.WatchResponse{Events: s.events})
	return nil
}

func TestPreviousValuesAreCompleted(t *testing.T) {
	ctx := t.Context()
	srv, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	defer srv.Close()
	b, err := Open(ctx, Config{Endpoints: srv.Endpoints()})
	require.NoError(t, err)
	defer b.Close()

	put := func(value string) int64 {
		resp, err := b.Client().Put(ctx, "k", value)
		require.NoError(t, err)
		return resp.Header.Revision
	}
	created, updated := put("1"), put("2")
	resp, err := b.Client().Delete(ctx, "k")
	require.NoError(t, err)
	deleted := resp.Header.Revision
	events := []*mvccpb.Event{
		{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{Key: []byte("k"), CreateRevision: created, ModRevision: created}},
		{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{Key: []byte("k"), CreateRevision: created, ModRevision: updated}},
		{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: deleted}},
		{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: deleted}, PrevKv: &mvccpb.KeyValue{Value: []byte("its own")}},
	}
	wanted := true
	receive := func(ctx context.Context, method string) []string {
		streamer := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			return forgetfulStream{ctx: ctx, events: events}, nil
		}
		stream, err := keepPreviousValues(ctx, nil, b.Client().ActiveConnection(), method, streamer)
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
			CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte("k"), PrevKv: wanted},
		}}))
		got := &etcdserverpb.WatchResponse{}
		require.NoError(t, stream.RecvMsg(got))
		var values []string
		for _, e := range got.Events {
			if e.PrevKv == nil {
				values = append(values, "none")
			} else {
				values = append(values, string(e.PrevKv.Value))
			}
		}
		return values
	}
	ofStore := metadata.NewOutgoingContext(ctx, metadata.Pairs(grpckeys.Stream, "x"))
	const watch = etcdserverpb.Watch_Watch_FullMethodName
	require.Equal(t, []string{"none", "1", "2", "its own"}, receive(ofStore, watch))
	require.Equal(t, []string{"none", "none", "none", "its own"}, receive(ctx, watch), "not a store's")
	require.Equal(t, []string{"none", "none", "none", "its own"}, receive(ofStore, "/other"))
	wanted = false
	own := context.WithValue(ofStore, ownStreamKey{}, &storeWatch{})
	require.Equal(t, []string{"none", "none", "none", "its own"}, receive(own, watch), "a cache's that wants none")
	require.Equal(t, []string{"none", "1", "2", "its own"}, receive(ofStore, watch), "a stream of several watches")
	wanted = true

	_, err = b.Client().Compact(ctx, deleted, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	require.Equal(t, []string{"none", "none", "none", "its own"}, receive(ofStore, watch), "compacted")
}

// Whatever somebody has written to etcd, no value makes the decoder read past its end.
func TestLastValueOfAnyBytes(t *testing.T) {
	want := lastValue{version: 7, key: "/registry/pods/a", value: []byte("x")}
	data := want.encode()
	got, ok := decodeLastValue(data)
	require.True(t, ok)
	require.Equal(t, want, got)
	for n := range len(data) - len(want.value) {
		_, ok := decodeLastValue(data[:n])
		require.False(t, ok, "the first %d bytes", n)
	}
	_, ok = decodeLastValue(append([]byte(lastValueMark), "\x00\x00\x00\x00\x00\x00\x00\x07\xff\xff\xff\xffkey"...))
	require.False(t, ok, "a key longer than the value")
}
