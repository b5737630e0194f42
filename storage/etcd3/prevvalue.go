// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// keepPreviousValues is a grpc.StreamClientInterceptor that adds missing
// previous values to the events of the stores' watches. A watch asks etcd to
// send the previous value with each change, and the store ends a watch with an
// error if it is missing. A previous value can be missing: etcd's server (in
// 3.7.3, watch.go) records that a new watch asked for previous values only
// after the watch may have been served, so that a change at that moment comes
// without one. The interceptor then reads the previous value from etcd, which
// has it until it is compacted.
func keepPreviousValues(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !isStoreWatch(ctx, method) {
		return stream, err
	}
	return &completedStream{ClientStream: stream, kv: etcdserverpb.NewKVClient(cc)}, nil
}

// isStoreWatch reports whether a stream carries the watches of a store. Other
// users of the client get their watches as etcd sends them.
func isStoreWatch(ctx context.Context, method string) bool {
	if method != etcdserverpb.Watch_Watch_FullMethodName {
		return false
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md.Get(streamKey)) > 0
}

type completedStream struct {
	grpc.ClientStream
	kv etcdserverpb.KVClient
}

// RecvMsg implements grpc.ClientStream.
func (s *completedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if resp, ok := m.(*etcdserverpb.WatchResponse); ok {
		for _, e := range resp.Events {
			if created := e.Type == mvccpb.Event_PUT && e.Kv.GetCreateRevision() == e.Kv.GetModRevision(); !created && e.PrevKv == nil {
				e.PrevKv = s.before(e.Kv)
			}
		}
	}
	return nil
}

// before returns the value of the key before kv, or nil if that can't be read:
// then the store ends the watch, as it would without the interceptor.
func (s *completedStream) before(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	resp, err := s.kv.Range(s.Context(), &etcdserverpb.RangeRequest{Key: kv.GetKey(), Revision: kv.GetModRevision() - 1})
	if err != nil || len(resp.GetKvs()) != 1 {
		return nil
	}
	return resp.Kvs[0]
}
