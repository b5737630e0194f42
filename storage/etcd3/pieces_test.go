// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// receivedBytes counts what comes of events, on all watch streams, and the most that
// came at once.
type receivedBytes struct {
	mu          sync.Mutex
	total, most int
}

func (r *receivedBytes) open(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || method != etcdserverpb.Watch_Watch_FullMethodName {
		return stream, err
	}
	return countedStream{stream, r}, nil
}

func (r *receivedBytes) get() (total, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total, r.most
}

type countedStream struct {
	grpc.ClientStream
	received *receivedBytes
}

func (s countedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	n := 0
	for _, e := range m.(*etcdserverpb.WatchResponse).GetEvents() {
		n += len(e.GetKv().GetValue()) + len(e.GetPrevKv().GetValue())
	}
	s.received.mu.Lock()
	defer s.received.mu.Unlock()
	s.received.total += n
	s.received.most = max(s.received.most, n)
	return nil
}

// A watch in pieces brings all of a history of large objects, each event once and in
// order, with a bookmark where a revision ends and nowhere else, also when its
// connection breaks in the middle; and it holds a few pieces of it at a time.
func TestHistoryInPieces(t *testing.T) {
	srv := startEtcd(t, embedded.Config{ClientURL: "http://127.0.0.1:0"})
	received, dialer := &receivedBytes{}, &breakableDialer{refused: make(chan struct{}, 1)}
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(dialer.dial), grpc.WithChainStreamInterceptor(received.open),
	}})
	s := newStore(t, b, pods("pods"))
	from := uint64(bump(t, b))
	const revisions, count, size = 200, 3, 20_000
	ops := putLargePods(t, count, size)
	for i := range uint64(revisions) {
		require.Equal(t, from+1+i, commit(t, b, ops))
	}
	ctx := metadata.AppendToOutgoingContext(testContext(t), "watchcache", "history", "watchcache-pieces", "true")
	w, err := s.Watch(ctx, "/pods/", storage.ListOptions{
		ResourceVersion: strconv.FormatUint(from, 10), Recursive: true, ProgressNotify: true, Predicate: storage.Everything,
	})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	taken := w.(interface{ Taken(version uint64) }).Taken
	taken(from)
	// The client takes from the stream what it may before anybody reads.
	const room = 2 << 20
	require.Eventually(t, func() bool {
		total, _ := received.get()
		return total >= room
	}, deadline, time.Millisecond)
	at, seen, had := from, count, 0
	for at < from+revisions || seen < count {
		event := next(t, w)
		rv := rvOf(t, event.Object)
		if event.Type == watch.Bookmark {
			require.Equal(t, []any{at, count}, []any{rv, seen}, "a bookmark is where a revision ends")
			continue
		}
		if rv != at {
			require.Equal(t, []any{at + 1, count}, []any{rv, seen}, "revisions come whole, and one after the other")
			at, seen = rv, 0
		}
		require.Equal(t, "p"+strconv.Itoa(seen), event.Object.(*example.Pod).Name)
		seen++
		had += size
		if at > from+1 {
			had += size // and the value before
		}
		taken(rv)
		total, most := received.get()
		require.Less(t, total-had, room+3*most, "after revision %d of %d", at-from, revisions)
		if rv == from+revisions/2 && seen == 1 {
			dialer.refuse(true)
			dialer.refuse(false)
		}
	}
	total, most := received.get()
	require.Less(t, most, 2_500_000, "etcd sends fragments")
	require.Greater(t, total, 2*revisions*count*size-count*size)
	t.Logf("%d bytes in responses of %d at most", total, most)
}

// putLargePods returns operations that write count pods of some size, for one
// transaction.
func putLargePods(t *testing.T, count, size int) (ops []clientv3.Op) {
	for i := range count {
		name := "p" + strconv.Itoa(i)
		data, err := runtime.Encode(codec, &example.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Annotations: map[string]string{"large": strings.Repeat("x", size)},
		}})
		require.NoError(t, err)
		ops = append(ops, clientv3.OpPut("/registry/pods/ns/"+name, string(data)))
	}
	return ops
}
