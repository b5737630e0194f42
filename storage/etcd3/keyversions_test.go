// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

type keyVersioner interface {
	KeyVersions(ctx context.Context, keys []string) ([]uint64, uint64, error)
}

func keyVersions(t *testing.T, s storage.Interface) keyVersioner {
	t.Helper()
	k, ok := s.(keyVersioner)
	require.True(t, ok, "a store reads the versions of keys")
	return k
}

// kvCalls intercepts the reads of keys without values, and leaves alone the other
// calls that a backend makes in the background.
type kvCalls struct {
	mu struct {
		sync.Mutex
		ranges []*etcdserverpb.RangeRequest
		values int // bytes of values in the answers
		// before is called before each transaction, with its number from 0.
		before func(txn int) error
		txns   int
	}
}

// reset forgets what was sent, and has before called from now on.
func (c *kvCalls) reset(before func(txn int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ranges, c.mu.values, c.mu.txns = nil, 0, 0
	c.mu.before = before
}

// sent returns the ranges and the number of transactions that were sent, and how
// many bytes of values came.
func (c *kvCalls) sent() (ranges []*etcdserverpb.RangeRequest, txns, values int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ranges, c.mu.txns, c.mu.values
}

func (c *kvCalls) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ranges, txn := keysRead(req)
	if len(ranges) == 0 {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	c.mu.Lock()
	c.mu.ranges = append(c.mu.ranges, ranges...)
	number, before := c.mu.txns, c.mu.before
	if txn {
		c.mu.txns++
	}
	c.mu.Unlock()
	if txn && before != nil {
		if err := before(number); err != nil {
			return err
		}
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := reply.(type) {
	case *etcdserverpb.RangeResponse:
		c.mu.values += bytesOfValues(r)
	case *etcdserverpb.TxnResponse:
		for _, op := range r.Responses {
			c.mu.values += bytesOfValues(op.GetResponseRange())
		}
	}
	return err
}

// keysRead returns the ranges of a request that reads keys without values, none
// if it is another one, and whether it is a transaction.
func keysRead(req any) (ranges []*etcdserverpb.RangeRequest, txn bool) {
	switch r := req.(type) {
	case *etcdserverpb.RangeRequest:
		ranges = append(ranges, r)
	case *etcdserverpb.TxnRequest:
		txn = true
		for _, op := range r.Success {
			ranges = append(ranges, op.GetRequestRange())
		}
	}
	for _, r := range ranges {
		if !r.GetKeysOnly() {
			return nil, txn
		}
	}
	return ranges, txn
}

func bytesOfValues(r *etcdserverpb.RangeResponse) (n int) {
	for _, kv := range r.GetKvs() {
		n += len(kv.Value)
	}
	return n
}

// newCountedStore returns a store of pods, the calls that it sends to etcd from
// now on, and another client of the same etcd.
func newCountedStore(t *testing.T) (storage.Interface, *kvCalls, *etcd3.Backend) {
	srv := startEtcd(t, embedded.Config{})
	calls := &kvCalls{}
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), Prefix: "fleet", DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(calls.intercept)}})
	return newStore(t, b, pods("pods")), calls, open(t, etcd3.Config{Endpoints: srv.Endpoints()})
}

func TestKeyVersions(t *testing.T) {
	s, calls, other := newCountedStore(t)
	k := keyVersions(t, s)
	ctx := testContext(t)
	first, second := rvOf(t, create(t, s, "/pods/ns/a")), rvOf(t, create(t, s, "/pods/ns/b"))
	create(t, s, "/pods/ns/deleted")
	require.NoError(t, s.Delete(ctx, "/pods/ns/deleted", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))
	now := uint64(bump(t, other))
	calls.reset(nil)

	for _, tc := range []struct {
		keys []string
		want []uint64
	}{
		{nil, []uint64{}},
		{[]string{"/pods/ns/b"}, []uint64{second}},
		{[]string{"/pods/ns/never"}, []uint64{0}},
		{[]string{"/pods/ns/deleted"}, []uint64{0}},
		{[]string{"/pods/ns/b", "/pods/ns/never", "/pods/ns/a", "/pods/ns/deleted", "/pods/ns/b"}, []uint64{second, 0, first, 0, second}},
		{[]string{"/pods/ns", "/pods/n", "/pods/ns/"}, []uint64{0, 0, 0}}, // no prefixes
	} {
		versions, current, err := k.KeyVersions(ctx, tc.keys)
		require.NoError(t, err, tc.keys)
		require.Equal(t, tc.want, versions, tc.keys)
		require.Equal(t, now, current, tc.keys)
	}
	ranges, _, values := calls.sent()
	require.Zero(t, values, "no value crosses the wire")
	require.NotEmpty(t, ranges)
	for _, r := range ranges {
		require.False(t, r.GetSerializable(), "a member that lags must not answer: %v", r)
	}
}

func TestKeyVersionsRefuses(t *testing.T) {
	b := newBackend(t)
	s := newStore(t, b, pods("pods"))
	k := keyVersions(t, s)
	ctx := testContext(t)
	for _, key := range []string{"/nodes/ns/a", "", "/pods/../nodes/a"} {
		_, _, err := k.KeyVersions(ctx, []string{"/pods/ns/a", key})
		require.ErrorContains(t, err, fmt.Sprintf("%q", key))
		require.ErrorContains(t, err, "pods.example.test")
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, keys := range [][]string{{"/pods/a"}, {"/pods/a", "/pods/b"}} {
		_, _, err := k.KeyVersions(cancelled, keys)
		require.ErrorIs(t, err, context.Canceled)
	}
	s.(interface{ Close() }).Close()
	_, _, err := k.KeyVersions(ctx, []string{"/pods/ns/a"})
	require.ErrorIs(t, err, etcd3.ErrClosed)

	open := keyVersions(t, newStore(t, b, pods("pods")))
	require.NoError(t, b.Close())
	_, _, err = open.KeyVersions(ctx, nil)
	require.ErrorIs(t, err, etcd3.ErrClosed)
}

// manyKeys are more than one transaction may ask for.
func manyKeys() (keys []string) {
	for i := range 250 {
		keys = append(keys, fmt.Sprintf("/pods/ns/%03d", i))
	}
	return keys
}

// REGRESSIONS 147: the size of a transaction is learned from an etcd that refuses it.
func TestKeyVersionsOfAnEtcdWithSmallTransactions(t *testing.T) {
	config := embed.NewConfig()
	config.Dir, config.MaxTxnOps, config.LogLevel = t.TempDir(), 16, "error"
	local := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.ListenPeerUrls = local, local
	etcd, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	calls := &kvCalls{}
	logged, logs := observer.New(zap.WarnLevel)
	s := newStore(t, open(t, etcd3.Config{
		Endpoints: []string{"http://" + etcd.Clients[0].Addr().String()}, Logger: zap.New(logged),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(calls.intercept)},
	}), pods("pods"))
	rv := rvOf(t, create(t, s, "/pods/ns/001"))
	for i, most := range []int{3 + 21, 21} { // 100, 50 and 25 keys are refused, 12 are not
		calls.reset(nil)
		versions, _, err := keyVersions(t, s).KeyVersions(testContext(t), manyKeys())
		require.NoError(t, err)
		require.Len(t, versions, 250)
		require.Equal(t, rv, versions[1])
		_, txns, _ := calls.sent()
		require.Equal(t, most, txns, "the transactions of call %d", i)
	}
	require.Equal(t, 3, logs.FilterMessageSnippet("--max-txn-ops").Len())
}

// All answers are as of one resourceVersion, also if keys change between two
// requests.
func TestKeyVersionsOfManyKeys(t *testing.T) {
	s, calls, other := newCountedStore(t)
	ctx := testContext(t)
	keys := manyKeys()
	var want []uint64
	for _, key := range keys {
		want = append(want, rvOf(t, create(t, s, key)))
	}
	calls.reset(func(txn int) error {
		if txn > 0 { // after the first answer
			_, err := other.Client().Put(ctx, "/fleet"+keys[240], "changed")
			return err
		}
		return nil
	})
	versions, current, err := keyVersions(t, s).KeyVersions(ctx, keys)
	require.NoError(t, err)
	require.Equal(t, want, versions)
	require.Equal(t, want[len(want)-1], current)
	_, txns, _ := calls.sent()
	require.Equal(t, 3, txns)

	calls.reset(func(txn int) error {
		if txn == 1 {
			_, err := other.Client().Compact(ctx, bump(t, other), clientv3.WithCompactPhysical())
			return err
		}
		return nil
	})
	_, _, err = keyVersions(t, s).KeyVersions(ctx, keys)
	require.True(t, apierrors.IsResourceExpired(err), "got %v", err)
}

// A transaction that only reads is repeated where the client repeats a Get.
func TestKeyVersionsInsists(t *testing.T) {
	s, calls, _ := newCountedStore(t)
	rv := rvOf(t, create(t, s, "/pods/ns/a"))
	calls.reset(func(txn int) error {
		if txn < 3 {
			return status.Error(codes.Unavailable, "etcdserver: no leader")
		}
		return nil
	})
	versions, _, err := keyVersions(t, s).KeyVersions(testContext(t), []string{"/pods/ns/a", "/pods/ns/b"})
	require.NoError(t, err)
	require.Equal(t, []uint64{rv, 0}, versions)
	_, txns, _ := calls.sent()
	require.Equal(t, 4, txns)

	ctx, cancel := context.WithCancel(testContext(t))
	calls.reset(func(int) error {
		cancel()
		return status.Error(codes.Unavailable, "etcdserver: no leader")
	})
	_, _, err = keyVersions(t, s).KeyVersions(ctx, []string{"/pods/ns/a", "/pods/ns/b"})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "no leader")
}
