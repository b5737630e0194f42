// SPDX-License-Identifier: Apache-2.0

package etcd3

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kube-watchcache/watchcache/internal/grpckeys"
)

// keepPreviousValues is a grpc.StreamClientInterceptor for the watches of stores. It adds missing
// previous values to events. For the caches' watches, which have their own streams, it also marks
// the previous values of deletions.
//
// A store ends a watch with an error if a change lacks its previous value, unless the watch omits
// previous values, as a cache's does on Kubernetes 1.38. etcd's server (in 3.7.3, watch.go) may
// serve a new watch before it records that the watch requests these values. We then read the value
// from etcd, unless it is compacted.
func keepPreviousValues(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !isStoreWatch(ctx, method) {
		return stream, err
	}
	_, own := ctx.Value(ownStreamKey{}).(*storeWatch)
	return &completedStream{ClientStream: stream, kv: etcdserverpb.NewKVClient(cc), own: own}, nil
}

// isStoreWatch reports whether a stream carries the watches of a store. We don't modify those of
// other users of the client.
func isStoreWatch(ctx context.Context, method string) bool {
	if method != etcdserverpb.Watch_Watch_FullMethodName {
		return false
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md.Get(grpckeys.Stream)) > 0
}

type completedStream struct {
	grpc.ClientStream
	kv  etcdserverpb.KVClient
	own bool // of one watch, a cache's: the previous values of deletions are marked
	// without is true if that watch wants no previous values.
	without atomic.Bool
}

// SendMsg implements grpc.ClientStream.
func (s *completedStream) SendMsg(m any) error {
	if request, ok := m.(*etcdserverpb.WatchRequest); ok && s.own && request.GetCreateRequest() != nil {
		s.without.Store(!request.GetCreateRequest().GetPrevKv())
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *completedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	if resp, ok := m.(*etcdserverpb.WatchResponse); ok && !s.without.Load() {
		for _, e := range resp.Events {
			if created := e.Type == mvccpb.Event_PUT && e.Kv.GetCreateRevision() == e.Kv.GetModRevision(); !created && e.PrevKv == nil {
				e.PrevKv = s.before(e.Kv)
			}
			if s.own && e.Type == mvccpb.Event_DELETE && e.PrevKv != nil {
				e.PrevKv.Value = lastValue{version: uint64(e.PrevKv.ModRevision), value: e.PrevKv.Value}.encode()
			}
		}
	}
	return nil
}

// before returns the value of the key before kv, or nil if that can't be read, which makes the
// store end the watch.
func (s *completedStream) before(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	resp, err := s.kv.Range(s.Context(), &etcdserverpb.RangeRequest{Key: kv.GetKey(), Revision: kv.GetModRevision() - 1})
	if err != nil || len(resp.GetKvs()) != 1 {
		return nil
	}
	return resp.Kvs[0]
}

// lastValue is a deleted key's last value on its way from the interceptor through the transformer,
// which decrypts it, to the codec. Empty if the transformer failed.
type lastValue struct {
	version uint64 // the revision that wrote the value
	key     string // set by the transformer
	value   []byte
}

// lastValueMark begins an encoded lastValue, and no value of an API server.
const lastValueMark = "\x00watchcache-deleted\x00"

func (v lastValue) encode() []byte {
	data := make([]byte, 0, len(lastValueMark)+8+4+len(v.key)+len(v.value))
	data = append(data, lastValueMark...)
	data = binary.BigEndian.AppendUint64(data, v.version)
	data = binary.BigEndian.AppendUint32(data, uint32(len(v.key)))
	data = append(data, v.key...)
	return append(data, v.value...)
}

func decodeLastValue(data []byte) (lastValue, bool) {
	data, ok := bytes.CutPrefix(data, []byte(lastValueMark))
	if !ok {
		return lastValue{}, false
	}
	const head = 8 + 4
	if len(data) < head || uint64(len(data)-head) < uint64(binary.BigEndian.Uint32(data[8:])) {
		return lastValue{}, false // a stored value begins with the mark; don't decode it
	}
	key := data[head:][:binary.BigEndian.Uint32(data[8:])]
	return lastValue{version: binary.BigEndian.Uint64(data), key: string(key), value: data[head+len(key):]}, true
}

// watchedTransformer is the transformer of a store. It turns an unreadable last value into an empty
// one.
type watchedTransformer struct {
	value.Transformer
	pathPrefix string
	// changes is true if a stored value differs from the encoded object, so that it can become
	// unreadable.
	changes atomic.Bool
}

// TransformFromStorage implements value.Transformer.
func (t *watchedTransformer) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	last, deleted := decodeLastValue(data)
	if !deleted {
		out, stale, err := t.Transformer.TransformFromStorage(ctx, data, of)
		t.compare(data, out)
		return out, stale, err
	}
	out, stale, err := t.Transformer.TransformFromStorage(ctx, last.value, of)
	t.compare(last.value, out)
	last.key, last.value = strings.TrimPrefix(string(of.AuthenticatedData()), t.pathPrefix), out
	if err != nil {
		last.value = nil
	}
	return last.encode(), stale, nil
}

// TransformToStorage implements value.Transformer.
func (t *watchedTransformer) TransformToStorage(ctx context.Context, data []byte, of value.Context) ([]byte, error) {
	out, err := t.Transformer.TransformToStorage(ctx, data, of)
	t.compare(data, out)
	return out, err
}

// compare detects transformed values. Transformers return others without copying.
func (t *watchedTransformer) compare(in, out []byte) {
	if changed := len(in) != len(out) || (len(in) > 0 && &in[0] != &out[0]); changed && !t.changes.Load() {
		t.changes.Store(true)
	}
}

// watchedCodec is the codec of a store. It decodes an unreadable last value to an unreadObject.
type watchedCodec struct{ runtime.Codec }

// Decode implements runtime.Decoder.
func (c watchedCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	last, deleted := decodeLastValue(data)
	if !deleted {
		return c.Codec.Decode(data, defaults, into)
	}
	if len(last.value) > 0 {
		if object, kind, err := c.Codec.Decode(last.value, defaults, into); err == nil {
			return object, kind, nil
		}
	}
	return &unreadObject{key: last.key, version: last.version}, nil, nil
}

// unreadObject is a capability.UnreadObject. Its metadata have the resourceVersion of the deletion,
// and its key is without Config.Prefix.
type unreadObject struct {
	metav1.PartialObjectMetadata
	key     string
	version uint64
}

// LastState implements capability.UnreadObject.
func (o *unreadObject) LastState() (key string, rv uint64) { return o.key, o.version }

// DeepCopyObject implements runtime.Object.
func (o *unreadObject) DeepCopyObject() runtime.Object {
	return &unreadObject{PartialObjectMetadata: *o.PartialObjectMetadata.DeepCopy(), key: o.key, version: o.version}
}
