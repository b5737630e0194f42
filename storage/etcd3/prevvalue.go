// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// keepPreviousValues is a grpc.StreamClientInterceptor that completes the
// events of the stores' watches. A watch asks etcd to send with each change
// what was there before, and the store ends a watch with an error where that
// is missing. It can be missing: etcd's server (in 3.7.3, watch.go) remembers
// that a new watch asked for it only after the watch may have been served, so
// that a change in that moment comes without. It is read from etcd then, which
// keeps it until it is compacted.
func keepPreviousValues(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || method != etcdserverpb.Watch_Watch_FullMethodName {
		return stream, err
	}
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(streamKey)) == 0 {
		return stream, nil // not a store's: it may not want them
	}
	return &completedStream{ClientStream: stream, kv: etcdserverpb.NewKVClient(cc)}, nil
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

// before returns what was at the key before kv, or nil: then the store reports
// what it would have reported anyway.
func (s *completedStream) before(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	resp, err := s.kv.Range(s.Context(), &etcdserverpb.RangeRequest{Key: kv.GetKey(), Revision: kv.GetModRevision() - 1})
	if err != nil || len(resp.GetKvs()) != 1 {
		return nil
	}
	return resp.Kvs[0]
}
