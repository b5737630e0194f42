// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// reportProgress returns an interceptor that reports the end of each revision to stores' watches
// with progress notifications, and drops unreliable progress reports.
//
// etcd sends a watch all its events of a revision in one response, but the client hides the ends of
// responses from its callers. So after each response with events, we deliver a progress report for
// the same watch at the revision of the last event, as etcd would if requested at that moment. We
// can't use the revision in the response's header: while a watch catches up, it is ahead of the
// watch.
//
// An answer to a progress request goes to all watches of a stream. We drop it if trusts returns
// false for its sender: an etcd without the fix of etcd-io/etcd#15220 may send it before an event
// that it covers. etcd's periodic reports to a single watch are in order with its events. We
// forward them, except from a server without a cluster: kine sends a stream's first reports
// concurrently with its watches' first events.
func reportProgress(trusts func(member uint64) bool) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil || !isStoreWatch(ctx, method) {
			return stream, err
		}
		return &reportingStream{ClientStream: stream, trusts: trusts}, nil
	}
}

// reportingStream is one watch stream. One goroutine receives; another may send at the same time.
type reportingStream struct {
	grpc.ClientStream
	trusts func(member uint64) bool

	// Owned by the receiver: the response for the next call to deliver, or nil, and the watches
	// with progress notifications.
	due    *etcdserverpb.WatchResponse
	wanted map[int64]bool

	mu struct {
		sync.Mutex
		// creating has, for each unconfirmed watch, whether it requests progress notifications, in
		// order of the requests, which is etcd's order of confirmation.
		creating []bool
	}
}

// SendMsg implements grpc.ClientStream.
func (s *reportingStream) SendMsg(m any) error {
	if request, ok := m.(*etcdserverpb.WatchRequest); ok && request.GetCreateRequest() != nil {
		s.mu.Lock()
		s.mu.creating = append(s.mu.creating, request.GetCreateRequest().GetProgressNotify())
		s.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream. m is an empty message to fill.
func (s *reportingStream) RecvMsg(m any) error {
	response, ok := m.(*etcdserverpb.WatchResponse)
	if ok && s.due != nil {
		response.Header, response.WatchId = s.due.Header, s.due.WatchId
		s.due = nil
		return nil
	}
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil || !ok {
			return err
		}
		if s.counts(response) {
			s.follow(response)
			return nil
		}
		proto.Reset(response)
	}
}

// counts reports whether to forward a response: everything except progress reports that may
// overtake their events.
func (s *reportingStream) counts(r *etcdserverpb.WatchResponse) bool {
	header := r.GetHeader()
	switch {
	case r.GetWatchId() == clientv3.InvalidWatchID && !r.GetCreated() && !r.GetCanceled(): // answer to a progress request
		return s.trusts(header.GetMemberId())
	case len(r.GetEvents()) > 0 || r.GetCreated() || r.GetCanceled() || r.GetCompactRevision() != 0:
		return true
	default:
		return header.GetClusterId() != 0
	}
}

// follow tracks the stream's watches, and sets due if a progress report must follow the response.
func (s *reportingStream) follow(response *etcdserverpb.WatchResponse) {
	id, events := response.GetWatchId(), response.GetEvents()
	switch {
	case response.GetCreated():
		if s.nextCreated() && !response.GetCanceled() {
			if s.wanted == nil {
				s.wanted = make(map[int64]bool)
			}
			s.wanted[id] = true
		}
	case response.GetCanceled() || response.GetCompactRevision() != 0:
		delete(s.wanted, id)
	case len(events) > 0 && !response.GetFragment() && s.wanted[id]:
		header := response.GetHeader()
		s.due = &etcdserverpb.WatchResponse{
			WatchId: id,
			Header: &etcdserverpb.ResponseHeader{
				ClusterId: header.GetClusterId(),
				MemberId:  header.GetMemberId(),
				RaftTerm:  header.GetRaftTerm(),
				Revision:  events[len(events)-1].GetKv().GetModRevision(),
			},
		}
	}
}

// nextCreated reports whether the watch just confirmed requested progress notifications.
func (s *reportingStream) nextCreated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.creating) == 0 {
		return false
	}
	wants := s.mu.creating[0]
	s.mu.creating = s.mu.creating[1:]
	return wants
}
