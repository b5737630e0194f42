// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
)

// Whose reports count while a member is down, when it comes back, and what
// becomes of it if it is an old one.
func TestTrustInAMemberThatComesBack(t *testing.T) {
	for version, reliable := range map[string]bool{"3.6.1": true, "3.5.9": false} {
		t.Run(version, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				etcds := &scriptedEtcds{vers: map[string]string{"a": "3.5.21"}, asked: map[string]int{}}
				v := etcds.versions("a", "b")
				require.Empty(t, v.first(t.Context()))
				require.True(t, v.reliable.Load())
				require.True(t, v.trusts(numberOf("a")))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					v.run(ctx)
				}()
				elapse(10 * time.Minute)

				etcds.set("b", version)
				require.False(t, v.trusts(numberOf("b")), "b has not said what it is")
				elapse(backgroundRetry)
				synctest.Wait()
				require.Equal(t, reliable, v.trusts(numberOf("b")))
				require.Equal(t, reliable, v.reliable.Load())
				require.True(t, v.trusts(numberOf("a")))
				cancel()
				<-done
			})
		})
	}
}

// Behind a proxy there are members that no endpoint names, and what is not
// etcd has no members.
func TestTrustWhenAllHaveAnswered(t *testing.T) {
	etcds := &scriptedEtcds{vers: map[string]string{"p": "3.6.1"}, asked: map[string]int{}}
	v := etcds.versions("p")
	require.False(t, v.trusts(1))
	require.Empty(t, v.first(t.Context()))
	require.True(t, v.trusts(1))
	require.True(t, v.trusts(0))
}

// scriptedStream delivers responses and then an error.
type scriptedStream struct {
	grpc.ClientStream
	responses []*etcdserverpb.WatchResponse
}

var errStreamEnd = errors.New("the stream has ended")

func (s *scriptedStream) RecvMsg(m any) error {
	if len(s.responses) == 0 {
		return errStreamEnd
	}
	proto.Merge(m.(*etcdserverpb.WatchResponse), s.responses[0])
	s.responses = s.responses[1:]
	return nil
}

func TestUntrustedAnswersAreLeftOut(t *testing.T) {
	answer := func(watch int64, member uint64, revision int64) *etcdserverpb.WatchResponse {
		return &etcdserverpb.WatchResponse{WatchId: watch, Header: &etcdserverpb.ResponseHeader{ClusterId: 1, MemberId: member, Revision: revision}}
	}
	noEtcd := func(response *etcdserverpb.WatchResponse) *etcdserverpb.WatchResponse {
		response.Header = &etcdserverpb.ResponseHeader{Revision: response.Header.Revision}
		return response
	}
	created, event, ended := noEtcd(answer(1, 0, 21)), noEtcd(answer(1, 0, 22)), noEtcd(answer(1, 0, 24))
	created.Created, event.Events, ended.Canceled = true, []*mvccpb.Event{{Kv: &mvccpb.KeyValue{ModRevision: 22}}}, true
	refused := answer(clientv3.InvalidWatchID, 2, 15)
	refused.Created, refused.Canceled, refused.CancelReason = true, true, "no"
	stream := &scriptedStream{responses: []*etcdserverpb.WatchResponse{
		answer(clientv3.InvalidWatchID, 1, 11), // trusted
		answer(clientv3.InvalidWatchID, 2, 12), // not
		answer(0, 2, 13),                       // of one watch, unasked
		answer(clientv3.InvalidWatchID, 2, 14), // not
		refused,
		created, event, // not of an etcd: everything counts
		noEtcd(answer(1, 0, 23)), // but for reports
		ended,
	}}
	trusts := func(member uint64) bool { return member == 1 }
	streamer := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return stream, nil
	}
	receive := func(ctx context.Context) (revisions []int64) {
		s, err := reportProgress(trusts)(ctx, nil, nil, etcdserverpb.Watch_Watch_FullMethodName, streamer)
		require.NoError(t, err)
		for {
			got := &etcdserverpb.WatchResponse{}
			if err := s.RecvMsg(got); err != nil {
				require.ErrorIs(t, err, errStreamEnd)
				return revisions
			}
			revisions = append(revisions, got.GetHeader().GetRevision())
		}
	}
	all := stream.responses
	require.Equal(t, []int64{11, 13, 15, 21, 22, 24}, receive(metadata.NewOutgoingContext(t.Context(), metadata.Pairs(grpckeys.Stream, "x"))))
	stream.responses = all
	require.Equal(t, []int64{11, 12, 13, 14, 15, 21, 22, 23, 24}, receive(t.Context()), "not a store's")
}
