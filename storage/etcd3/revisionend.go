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

// reportProgress returns an interceptor that reports the end of each revision
// to the stores' watches, and drops progress reports that can't be trusted.
//
// Several events can have one revision: those of a transaction, or of a lease
// that expires. etcd sends a watch all its events of a revision in one
// response, but the client does not show its callers where a response ends. So
// after each response with events one more response is delivered: a progress
// report for the same watch, at the revision of the last event. etcd itself
// would answer a progress request like this at that moment.
//
// Only watches that asked for progress notifications get this report. The
// header of the response can't be used: while a watch catches up, the header
// names a revision that the watch has not reached yet.
//
// An answer to a progress request goes to all watches of a stream. The answer
// is dropped if trusts returns false for the member that sent it: an etcd
// without the fix of etcd-io/etcd#15220 may send the answer before an event
// that it covers. The periodic reports of etcd to a single watch are sent in
// order with that watch's events, and are passed on. Those of a server without a
// cluster, which is not etcd, are dropped: kine sends a stream's first reports
// beside the events that its watches begin with.
func reportProgress(trusts func(member uint64) bool) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil || !isStoreWatch(ctx, method) {
			return stream, err
		}
		return &reportingStream{ClientStream: stream, trusts: trusts}, nil
	}
}

// reportingStream is one watch stream. One goroutine receives; another may send
// at the same time.
type reportingStream struct {
	grpc.ClientStream
	trusts func(member uint64) bool

	// Fields of the receiving goroutine: due is the response that the next call
	// delivers, if not nil; wanted are the watches that asked for progress
	// notifications.
	due    *etcdserverpb.WatchResponse
	wanted map[int64]bool

	mu struct {
		sync.Mutex
		// creating has, for each watch that was requested and not yet confirmed,
		// whether it wants progress notifications. etcd confirms in the same order.
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

// counts reports whether a response is to be passed on: all are that are no
// progress report, and those reports that come after the events that they cover.
func (s *reportingStream) counts(r *etcdserverpb.WatchResponse) bool {
	header := r.GetHeader()
	switch {
	case r.GetWatchId() == clientv3.InvalidWatchID && !r.GetCreated() && !r.GetCanceled(): // an answer to a request
		return s.trusts(header.GetMemberId())
	case len(r.GetEvents()) > 0 || r.GetCreated() || r.GetCanceled() || r.GetCompactRevision() != 0:
		return true
	default:
		return header.GetClusterId() != 0
	}
}

// follow keeps track of the stream's watches, and sets due if a progress report
// must follow the response.
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

// nextCreated reports whether the watch that was just confirmed wants progress
// notifications.
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
