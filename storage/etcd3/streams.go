// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
)

// onStream returns the name of the stream requested by a caller's metadata, whether it carries a
// single watch, and ctx with only the name as outgoing metadata, because the client chooses the
// stream by all metadata.
func (s *store) onStream(ctx context.Context) (_ context.Context, stream string, own bool) {
	stream = fmt.Sprintf("%s/%d", s.resource, s.number)
	given, _ := metadata.FromOutgoingContext(ctx)
	if callers := given.Get(grpckeys.Caller); len(callers) > 0 {
		stream, own = stream+" "+strings.Join(callers, " "), true
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(grpckeys.Stream, stream)), stream, own
}

// ownStreamKey is the context key of a storeWatch with its own stream. The client passes the values
// of a watch's context to the stream's, but not its cancellation.
type ownStreamKey struct{}
