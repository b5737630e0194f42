// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// piecesKey is the gRPC metadata key by which the caller of a watch with a stream
	// of its own asks for it in pieces: no more comes than the caller takes. The caller
	// tells what it has taken (storeWatch.Taken). The value does not matter.
	piecesKey = "watchcache-pieces"
	// aheadBytes is how much a watch in pieces holds that its caller has not taken, and
	// a piece more.
	aheadBytes = 2 << 20
)

// inPieces is a grpc.StreamClientInterceptor for watches in pieces, which read history.
// etcd sends a thousand revisions in one response, and its client takes responses from
// the stream as they come and keeps, without a bound, what its caller has not taken.
// Objects of some size would then be in memory many times over while they are decoded.
//
// So etcd is asked for fragments, each about as large as the largest request, and each
// goes to the client as a response of its own, cut where a revision ends: the client
// resumes a broken watch after the last revision that it has seen. And nothing is
// received while the caller is behind, so that etcd is held up by the stream's window.
func inPieces(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	own, _ := ctx.Value(ownStreamKey{}).(ownStream)
	if err != nil || own.ahead == nil || !isStoreWatch(ctx, method) {
		return stream, err
	}
	return &piecesStream{ClientStream: stream, ahead: own.ahead}, nil
}

// piecesStream is the stream of one watch. One goroutine receives; another may send at
// the same time.
type piecesStream struct {
	grpc.ClientStream
	ahead *ahead
	// begun has the events of the last revision in the last fragment: more of them may
	// come. The receiving goroutine's.
	begun []*mvccpb.Event
}

// SendMsg implements grpc.ClientStream.
func (s *piecesStream) SendMsg(m any) error {
	if request, ok := m.(*etcdserverpb.WatchRequest); ok && request.GetCreateRequest() != nil {
		create := request.GetCreateRequest()
		create.Fragment = true
		s.ahead.resume(uint64(create.GetStartRevision()))
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream. m is an empty message to fill.
func (s *piecesStream) RecvMsg(m any) error {
	response, ok := m.(*etcdserverpb.WatchResponse)
	if !ok {
		return s.ClientStream.RecvMsg(m)
	}
	if err := s.ahead.wait(s.Context()); err != nil {
		return status.FromContextError(err).Err()
	}
	for {
		if err := s.ClientStream.RecvMsg(response); err != nil {
			return err
		}
		if s.cut(response) {
			return nil
		}
		proto.Reset(response)
	}
}

// cut makes a fragment a response of its own that ends with a revision, and reports
// whether there is anything to hand on. Other responses stay as they are.
func (s *piecesStream) cut(response *etcdserverpb.WatchResponse) bool {
	if response.GetCanceled() || response.GetCompactRevision() != 0 {
		s.begun = nil // the watch is over
		return true
	}
	events := response.GetEvents()
	if len(events) == 0 {
		return !response.GetFragment()
	}
	events = append(s.begun, events...)
	end := len(events)
	if response.GetFragment() {
		for last := events[end-1].GetKv().GetModRevision(); end > 0 && events[end-1].GetKv().GetModRevision() == last; {
			end--
		}
	}
	s.begun = append([]*mvccpb.Event(nil), events[end:]...)
	if end == 0 {
		return false
	}
	response.Events, response.Fragment = events[:end], false
	s.ahead.came(response.Events)
	return true
}

// ahead is what a watch in pieces has brought, over all its streams, and its caller has
// not taken.
type ahead struct {
	mu struct {
		sync.Mutex
		// told: the caller tells what it takes. Until then there is no bound, so that a
		// caller who never does gets everything all the same.
		told   bool
		pieces []piece
		bytes  int
		// fewer, unless nil, is closed when the caller takes something.
		fewer chan struct{}
	}
}

// piece is one response.
type piece struct {
	through uint64 // the revision of its last event
	bytes   int
}

// came counts a piece.
func (a *ahead) came(events []*mvccpb.Event) {
	bytes := 0
	for _, e := range events {
		bytes += len(e.GetKv().GetValue()) + len(e.GetPrevKv().GetValue()) + 2*len(e.GetKv().GetKey())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.pieces = append(a.mu.pieces, piece{through: uint64(events[len(events)-1].GetKv().GetModRevision()), bytes: bytes})
	a.mu.bytes += bytes
}

// resume drops the pieces that reach as far as the revision which a stream begins with:
// they were lost with the stream before, and their events come again.
func (a *ahead) resume(start uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := len(a.mu.pieces) - 1; n >= 0 && a.mu.pieces[n].through >= start; n-- {
		a.mu.bytes -= a.mu.pieces[n].bytes
		a.mu.pieces = a.mu.pieces[:n]
	}
}

// taken drops the pieces up to a revision.
func (a *ahead) taken(version uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.told = true
	n := 0
	for ; n < len(a.mu.pieces) && a.mu.pieces[n].through <= version; n++ {
		a.mu.bytes -= a.mu.pieces[n].bytes
	}
	a.mu.pieces = a.mu.pieces[n:]
	if n > 0 && a.mu.fewer != nil {
		close(a.mu.fewer)
		a.mu.fewer = nil
	}
}

// wait returns when there is room for another piece, or with ctx's error.
func (a *ahead) wait(ctx context.Context) error {
	for {
		fewer := a.full()
		if fewer == nil {
			return nil
		}
		select {
		case <-fewer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// full returns nil if there is room, or a channel that is closed when there may be.
func (a *ahead) full() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.mu.told || a.mu.bytes < aheadBytes {
		return nil
	}
	if a.mu.fewer == nil {
		a.mu.fewer = make(chan struct{})
	}
	return a.mu.fewer
}
