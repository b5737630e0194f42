// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
)

// onStream returns the name of the stream that a caller's metadata request, whether the
// stream is the watch's own, and ctx with outgoing metadata that name the stream, instead
// of the caller's metadata: the client compares all of the metadata to choose the stream.
func (s *store) onStream(ctx context.Context) (_ context.Context, stream string, own bool) {
	stream = fmt.Sprintf("%s/%d", s.resource, s.number)
	given, _ := metadata.FromOutgoingContext(ctx)
	if callers := given.Get(grpckeys.Caller); len(callers) > 0 {
		stream, own = stream+" "+strings.Join(callers, " "), true
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(grpckeys.Stream, stream)), stream, own
}

// ownStreamKey is the context key of a storeWatch with a stream of its own: the client
// passes the values of a watch's context on to the stream's context, but not its
// cancellation.
type ownStreamKey struct{}

// streamTries is how often opening a stream is tried until it is on another
// member than the stream before. The client uses its members in turn, one for
// each call.
const streamTries = 5

// openOwnStream is a grpc.StreamClientInterceptor for streams that belong to
// one watch. Such a stream ends when the watch ends: the client itself would
// keep a stream whose server has never confirmed the watch, and, when the
// connection is lost, open the stream again on another member without a watch
// on it. The stream also goes to another member than the store's last one, if
// there is another: in most cases it is opened because the last member does not
// answer, which the client's balancer does not know.
func openOwnStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	own, ok := ctx.Value(ownStreamKey{}).(*storeWatch)
	if !ok || method != etcdserverpb.Watch_Watch_FullMethodName {
		return streamer(ctx, desc, cc, method, opts...)
	}
	for try := 1; ; try++ {
		ctx, cancel := context.WithCancel(ctx)
		detach := context.AfterFunc(own.life, cancel)
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			detach()
			cancel()
			return nil, err
		}
		if own.store.elsewhere(stream, try == streamTries) {
			return stream, nil
		}
		detach()
		cancel()
	}
}

// elsewhere reports whether the stream can be used: it is on another member
// than the last stream that was used, or there is no other member, or last is
// set because there are no tries left.
func (s *store) elsewhere(stream grpc.ClientStream, last bool) bool {
	member := ""
	if to, ok := peer.FromContext(stream.Context()); ok {
		member = to.Addr.String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if member != "" && member == s.mu.member && !last && len(s.backend.cfg.Endpoints) > 1 {
		return false
	}
	s.mu.member = member
	return true
}
