// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/util/watchlist"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// muteStreams lets the watch streams of some callers hang: nothing is sent to etcd
// and nothing comes from it. The client opens the streams of several watches in any
// order.
type muteStreams struct {
	mute          []string // what these callers gave as metadata
	opened, ended atomic.Int32
}

func (m *muteStreams) open(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	ids := md.Get("watchcache-stream")
	if path.Base(method) != "Watch" || len(ids) == 0 {
		return streamer(ctx, desc, cc, method, opts...)
	}
	stream, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	m.opened.Add(1)
	context.AfterFunc(ctx, func() { m.ended.Add(1) })
	if _, caller, _ := strings.Cut(ids[0], " "); slices.Contains(m.mute, caller) {
		return muteStream{stream}, nil
	}
	return stream, nil
}

type muteStream struct{ grpc.ClientStream }

func (muteStream) SendMsg(any) error { return nil }
func (s muteStream) RecvMsg(any) error {
	<-s.Context().Done()
	return s.Context().Err()
}

func watchOn(t *testing.T, s storage.Interface, stream, rv string) (watch.Interface, context.Context) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(testContext(t), "watchcache", stream)
	w, err := s.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: rv, Recursive: true, ProgressNotify: true, Predicate: storage.Everything})
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return w, ctx
}

// REGRESSIONS 109: a watch hangs. One that the caller puts on another stream
// works, progress is requested there, and what hangs ends at once when it is
// stopped, with its stream.
func TestWatchThatHangsIsReplaced(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	streams := &muteStreams{mute: []string{"1", "2"}}
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(streams.open)}})
	s := newStore(t, b, pods("pods"))
	rv := strconv.FormatInt(bump(t, b), 10)
	first, onFirst := watchOn(t, s, "1", rv)
	second, _ := watchOn(t, s, "2", rv)
	require.NoError(t, s.RequestWatchProgress(onFirst))
	third, onThird := watchOn(t, s, "3", rv)
	create(t, s, "/pods/ns/a")
	require.Equal(t, watch.Added, change(t, third).Type)
	at := bump(t, b)
	again := time.NewTicker(100 * time.Millisecond) // etcd answers no request while a watch catches up
	defer again.Stop()
	for told := false; !told; {
		require.NoError(t, s.RequestWatchProgress(onThird))
		select {
		case e, ok := <-third.ResultChan():
			require.True(t, ok, "the watch ended")
			told = e.Type == watch.Bookmark && rvOf(t, e.Object) >= uint64(at)
		case <-again.C:
		}
	}
	for n, w := range []watch.Interface{first, second} {
		w.Stop()
		for e := range w.ResultChan() {
			assert.Fail(t, fmt.Sprintf("a watch that hangs brought %v", e))
		}
		require.Eventually(t, func() bool { return streams.ended.Load() == int32(n+1) }, deadline, time.Millisecond)
	}
	// A stream that has nothing on it is not opened for a progress request.
	require.NoError(t, s.RequestWatchProgress(onFirst))
	require.Equal(t, int32(3), streams.opened.Load())
}

// Where the feature gate is off a store does not begin a watch with the initial
// state, and says so.
func TestStoreSaysWhetherItStreams(t *testing.T) {
	for _, enabled := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.WatchList, enabled)
		s := newStore(t, newBackend(t), pods("pods"))
		require.Equal(t, !enabled, watchlist.DoesClientNotSupportWatchListSemantics(s))
	}
}
