// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// scripted is a stream whose server has sent all of its responses already.
type scripted struct {
	grpc.ClientStream
	ctx       context.Context
	responses []*etcdserverpb.WatchResponse
	received  int
	sent      []any
}

func (s *scripted) Context() context.Context { return s.ctx }

func (s *scripted) SendMsg(m any) error {
	s.sent = append(s.sent, m)
	return nil
}

func (s *scripted) RecvMsg(m any) error {
	if s.received == len(s.responses) {
		return status.Error(codes.Unavailable, "the script is over")
	}
	proto.Merge(m.(*etcdserverpb.WatchResponse), s.responses[s.received])
	s.received++
	return nil
}

// brought is a response with an event for each revision, each of so many bytes.
func brought(fragment bool, bytes int, revisions ...int64) *etcdserverpb.WatchResponse {
	r := &etcdserverpb.WatchResponse{Fragment: fragment}
	for _, rev := range revisions {
		r.Events = append(r.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{ModRevision: rev, Value: make([]byte, bytes)}})
	}
	return r
}

// told is what a response says, in a line.
func told(r *etcdserverpb.WatchResponse) string {
	switch {
	case r.GetCanceled():
		return "canceled"
	case r.GetCreated():
		return "created"
	case len(r.GetEvents()) == 0:
		return "progress"
	}
	var revisions []string
	for _, e := range r.GetEvents() {
		revisions = append(revisions, fmt.Sprint(e.GetKv().GetModRevision()))
	}
	if r.GetFragment() {
		revisions = append(revisions, "and more")
	}
	return strings.Join(revisions, " ")
}

// Each piece ends with a revision, however etcd has cut its responses.
func TestPiecesEndWithARevision(t *testing.T) {
	created, canceled := &etcdserverpb.WatchResponse{Created: true}, &etcdserverpb.WatchResponse{Canceled: true}
	for _, tc := range []struct {
		name      string
		responses []*etcdserverpb.WatchResponse
		want      string
	}{
		{"a whole response", []*etcdserverpb.WatchResponse{created, brought(false, 0, 1, 2, 2)}, "created; 1 2 2"},
		{"a revision in two fragments", []*etcdserverpb.WatchResponse{brought(true, 0, 1, 2), brought(false, 0, 2, 3)}, "1; 2 2 3"},
		{"fragments between revisions", []*etcdserverpb.WatchResponse{brought(true, 0, 1, 2), brought(true, 0, 3), brought(false, 0, 4)}, "1; 2; 3 4"},
		{"a revision of three fragments", []*etcdserverpb.WatchResponse{brought(true, 0, 1, 1), brought(true, 0, 1), brought(false, 0, 1, 2)}, "1 1 1 1 2"},
		{"an end without events", []*etcdserverpb.WatchResponse{brought(true, 0, 1, 2), brought(false, 0, 2), brought(false, 0)}, "1; 2 2; progress"},
		{"two responses", []*etcdserverpb.WatchResponse{brought(true, 0, 1), brought(false, 0, 2), brought(true, 0, 3), brought(false, 0, 3)}, "1 2; 3 3"},
		{"canceled in the middle", []*etcdserverpb.WatchResponse{brought(true, 0, 1, 2), canceled, brought(false, 0, 5)}, "1; canceled; 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &piecesStream{ClientStream: &scripted{ctx: t.Context(), responses: tc.responses}, ahead: &ahead{}}
			var got []string
			for {
				response := &etcdserverpb.WatchResponse{}
				if err := s.RecvMsg(response); err != nil {
					break
				}
				got = append(got, told(response))
			}
			require.Equal(t, tc.want, strings.Join(got, "; "))
		})
	}
}

func TestPiecesAskForFragments(t *testing.T) {
	inner := &scripted{ctx: t.Context()}
	s := &piecesStream{ClientStream: inner, ahead: &ahead{}}
	create := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: &etcdserverpb.WatchCreateRequest{}}}
	require.NoError(t, s.SendMsg(create))
	require.NoError(t, s.SendMsg(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{}}))
	require.Len(t, inner.sent, 2)
	require.True(t, inner.sent[0].(*etcdserverpb.WatchRequest).GetCreateRequest().GetFragment())
}

// Nothing is received while the caller is behind, not by a stream that takes the place
// of one that broke either.
func TestPiecesWaitForTheCaller(t *testing.T) {
	const half = aheadBytes / 2
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		inner := &scripted{ctx: ctx}
		for rev := range int64(10) {
			inner.responses = append(inner.responses, brought(rev%2 == 0, half, rev+1))
		}
		s := &piecesStream{ClientStream: inner, ahead: &ahead{}}
		ended := make(chan error, 1)
		receive := func(s *piecesStream) {
			for {
				if err := s.RecvMsg(&etcdserverpb.WatchResponse{}); err != nil {
					ended <- err
					return
				}
			}
		}
		s.ahead.taken(0)
		go receive(s)
		synctest.Wait()
		// Two responses are one piece, which takes all the room.
		for _, step := range []struct {
			taken    uint64
			received int
		}{{0, 2}, {1, 2}, {2, 4}, {3, 4}, {4, 6}, {4, 6}} {
			s.ahead.taken(step.taken)
			synctest.Wait()
			require.Equal(t, step.received, inner.received, "taken: %d", step.taken)
		}
		// The stream breaks; the one that follows is held up as well.
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-ended))
		next := &scripted{ctx: t.Context(), responses: inner.responses[6:]}
		go receive(&piecesStream{ClientStream: next, ahead: s.ahead})
		synctest.Wait()
		require.Zero(t, next.received)
		s.ahead.taken(6)
		synctest.Wait()
		require.Equal(t, 2, next.received)
		s.ahead.taken(8)
		synctest.Wait()
		s.ahead.taken(10)
		require.Equal(t, codes.Unavailable, status.Code(<-ended))
	})
}

// Nobody waits for what was lost with a stream: etcd sends it again, perhaps in other
// pieces.
func TestPiecesThatWereLostDoNotCount(t *testing.T) {
	a := &ahead{}
	a.taken(0)
	a.came(brought(false, 10, 8, 9).Events)
	a.came(brought(false, aheadBytes, 10, 30).Events)
	require.NotNil(t, a.full())
	s := &piecesStream{ClientStream: &scripted{ctx: t.Context()}, ahead: a}
	require.NoError(t, s.SendMsg(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{StartRevision: 10},
	}}))
	require.Equal(t, []piece{{9, 20}}, a.mu.pieces)
	require.Nil(t, a.full())
	a.taken(9)
	require.Empty(t, a.mu.pieces)
	require.Zero(t, a.mu.bytes)
}

// A caller that does not tell what it takes gets everything.
func TestPiecesDoNotWaitForOneWhoSaysNothing(t *testing.T) {
	inner := &scripted{ctx: t.Context()}
	for rev := range int64(10) {
		inner.responses = append(inner.responses, brought(false, aheadBytes, rev+1))
	}
	s := &piecesStream{ClientStream: inner, ahead: &ahead{}}
	for range inner.responses {
		require.NoError(t, s.RecvMsg(&etcdserverpb.WatchResponse{}))
	}
}
