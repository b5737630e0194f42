// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

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
