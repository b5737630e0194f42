// SPDX-License-Identifier: Apache-2.0

package etcd3_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
	"github.com/kube-watchcache/watchcache/storage/etcd3/embedded"
)

// putPods returns operations that write count pods, for one transaction.
func putPods(t *testing.T, count int, opts ...clientv3.OpOption) (ops []clientv3.Op) {
	for i := range count {
		name := fmt.Sprintf("p%d", i)
		data, err := runtime.Encode(codec, &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
		require.NoError(t, err)
		ops = append(ops, clientv3.OpPut("/registry/pods/ns/"+name, string(data), opts...))
	}
	return ops
}

func commit(t *testing.T, b *etcd3.Backend, ops []clientv3.Op) uint64 {
	t.Helper()
	resp, err := b.Client().Txn(testContext(t)).Then(ops...).Commit()
	require.NoError(t, err)
	return uint64(resp.Header.Revision)
}

// wholeRevision takes count events of the revision rv and the bookmark that
// ends it.
func wholeRevision(t *testing.T, w watch.Interface, kind watch.EventType, count int, rv uint64) {
	t.Helper()
	for i := range count {
		event := next(t, w)
		require.Equal(t, kind, event.Type, "event %d of %d", i+1, count)
		require.Equal(t, rv, rvOf(t, event.Object))
	}
	end := next(t, w)
	require.Equal(t, watch.Bookmark, end.Type)
	require.Equal(t, rv, rvOf(t, end.Object))
}

func TestTransactionEndsWithABookmark(t *testing.T) {
	b := newBackend(t)
	s := newStore(t, b, pods("pods"))
	from := strconv.FormatInt(bump(t, b), 10)
	w := watchAll(t, s, "/pods/", from)
	for _, kind := range []watch.EventType{watch.Added, watch.Modified} {
		wholeRevision(t, w, kind, 3, commit(t, b, putPods(t, 3)))
	}
	// A revision of which the watch wants only a part ends with that part.
	ops := append(putPods(t, 1), clientv3.OpPut("/registry/nodes/n", "not of this resource"))
	wholeRevision(t, w, watch.Modified, 1, commit(t, b, ops))
}

func TestLeaseEndsWithABookmark(t *testing.T) {
	b := newBackend(t)
	s := newStore(t, b, pods("pods"))
	w := watchAll(t, s, "/pods/", strconv.FormatInt(bump(t, b), 10))
	lease, err := b.Client().Grant(testContext(t), 1)
	require.NoError(t, err)
	written := commit(t, b, putPods(t, 5, clientv3.WithLease(lease.ID)))
	wholeRevision(t, w, watch.Added, 5, written)
	wholeRevision(t, w, watch.Deleted, 5, written+1) // by itself, when the lease expires
}

// A watch that starts far back gets several revisions in one response, whose
// header tells of a revision that it has not reached: each bookmark is that of
// the last event before it.
func TestCatchingUpEndsWithTrueBookmarks(t *testing.T) {
	b := newBackend(t)
	s := newStore(t, b, pods("pods"))
	from := bump(t, b)
	const revisions = 2500 // etcd sends a thousand at a time
	var last uint64
	ops := putPods(t, 2)
	for range revisions {
		last = commit(t, b, ops)
	}
	w := watchAll(t, s, "/pods/", strconv.FormatInt(from, 10))
	requireBookmarksAreTrue(t, w, uint64(from), last, 2)
}

// requireBookmarksAreTrue reads until the bookmark at last. There is an event
// for each of count keys at each revision after from, and a bookmark comes
// only where a revision ends.
func requireBookmarksAreTrue(t *testing.T, w watch.Interface, from, last uint64, count int) {
	t.Helper()
	at, seen, bookmarks := from, count, 0
	for {
		event := next(t, w)
		rv := rvOf(t, event.Object)
		if event.Type == watch.Bookmark {
			require.Equal(t, at, rv, "the bookmark is at the last event's revision")
			require.Equal(t, count, seen, "all of revision %d came before", at)
			bookmarks++
			if rv == last {
				t.Logf("%d revisions, %d bookmarks", last-from, bookmarks)
				return
			}
			continue
		}
		if rv == at {
			seen++
			continue
		}
		require.Equal(t, at+1, rv, "no revision is left out or comes twice")
		require.Equal(t, count, seen, "all of revision %d came before %d", at, rv)
		at, seen = rv, 1
	}
}

func TestWatchWithoutProgressHasNoBookmarks(t *testing.T) {
	b := newBackend(t)
	s := newStore(t, b, pods("pods"))
	opts := storage.ListOptions{ResourceVersion: strconv.FormatInt(bump(t, b), 10), Predicate: storage.Everything, Recursive: true}
	open := func(progress bool) watch.Interface {
		opts.ProgressNotify = progress
		w, err := s.Watch(testContext(t), "/pods/", opts)
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		return w
	}
	// On one stream, created in an order that tells them apart.
	before, with, after := open(false), open(true), open(false)
	for range 2 {
		rv := commit(t, b, putPods(t, 1))
		for _, w := range []watch.Interface{before, after} {
			event := next(t, w)
			require.NotEqual(t, watch.Bookmark, event.Type)
			require.Equal(t, rv, rvOf(t, event.Object))
		}
		change(t, with)
	}
}

// The client opens a broken stream again by itself and resumes its watches,
// which then have other numbers.
func TestResumedWatchHasTrueBookmarks(t *testing.T) {
	srv := startEtcd(t, embedded.Config{})
	conns := &breakableDialer{}
	b := open(t, etcd3.Config{Endpoints: srv.Endpoints(), DialOptions: []grpc.DialOption{grpc.WithContextDialer(conns.dial)}})
	writer := open(t, etcd3.Config{Endpoints: srv.Endpoints()})
	s := newStore(t, b, pods("pods"))
	from := bump(t, writer)
	stopped := watchAll(t, s, "/pods/", strconv.FormatInt(from, 10))
	w := watchAll(t, s, "/pods/", strconv.FormatInt(from, 10))
	ops := putPods(t, 3)
	last := commit(t, writer, ops)
	wholeRevision(t, stopped, watch.Added, 3, last)
	stopped.Stop()
	for i := range 300 {
		if i%20 == 0 {
			conns.refuse(false)
		}
		last = commit(t, writer, ops)
	}
	requireBookmarksAreTrue(t, w, uint64(from), last, 3)
}
