// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/kube-watchcache/watchcache/storage/etcd3"
)

// TestCompaction: what is compacted is gone, kine says so, and the cache learns
// of it.
func TestCompaction(t *testing.T) { onEach(t, testCompaction) }

func testCompaction(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db, compacting), noProgress)
	a := f.create(t, f.stored, "ns/a")
	f.update(t, f.stored, "ns/a", func(pod *example.Pod) { pod.Spec.NodeName = "node" })
	b := f.create(t, f.stored, "ns/b")
	f.reached(t, b.ResourceVersion)
	require.Len(t, f.list(t, f.cacher, "", exactly(a.ResourceVersion)).Items, 1)

	require.NoError(t, compact(f.ctx, f.client(), int64(version(t, b.ResourceVersion))))
	eventually(t, func() bool { return f.cacher.CompactRevision() == int64(version(t, b.ResourceVersion)) }, "the cache does not learn of the compaction")
	for _, s := range []struct {
		name string
		list func() error
	}{
		{"kine", func() error { return f.stored.GetList(f.ctx, f.prefix, exactly(a.ResourceVersion), &example.PodList{}) }},
		{"cache", func() error { return f.cacher.GetList(f.ctx, f.prefix, exactly(a.ResourceVersion), &example.PodList{}) }},
	} {
		require.True(t, apierrors.IsResourceExpired(s.list()), "%s: %v", s.name, s.list())
	}
	require.Equal(t, []string{"ns/a", "ns/b"}, names(f.list(t, f.cacher, "", exactly(b.ResourceVersion))))

	_, err := changeOf(f.next(t, f.watch(t, f.stored, "", from(a.ResourceVersion))))
	require.True(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err), "%v", err)
	// The cache's window has what kine has not (docs/decisions/0005).
	resumed, err := changes(f.ctx, f.watch(t, f.cacher, "", from(a.ResourceVersion)), "ns/b")
	require.NoError(t, err)
	require.Len(t, resumed, 2)
	require.Equal(t, watch.Modified, resumed[0].typ)
}

// TestCompactionInterval: a client that is to compact does.
func TestCompactionInterval(t *testing.T) { onEach(t, testCompactionInterval) }

func testCompactionInterval(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db, compacting), noProgress)
	a := f.create(t, f.stored, "ns/a")
	b := f.create(t, f.stored, "ns/b")
	compacting, err := etcd3.Open(f.ctx, etcd3.Config{Endpoints: []string{f.kine.endpoint()}, CompactionInterval: 100 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, compacting.Close()) })
	eventually(t, func() bool { return f.cacher.CompactRevision() >= int64(version(t, b.ResourceVersion)) }, "nothing is compacted")
	err = f.stored.GetList(f.ctx, f.prefix, exactly(a.ResourceVersion), &example.PodList{})
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)
}

// TestCompactionLeaves: unless told otherwise kine keeps the last thousand
// revisions, and answers as if it had compacted what it was asked to.
func TestCompactionLeaves(t *testing.T) { onEach(t, testCompactionLeaves) }

func testCompactionLeaves(t *testing.T, db database) {
	t.Parallel()
	f := newFixture(t, startKine(t, db), noProgress)
	a := f.create(t, f.stored, "ns/a")
	b := f.create(t, f.stored, "ns/b")
	require.NoError(t, compact(f.ctx, f.client(), int64(version(t, b.ResourceVersion))))
	require.Equal(t, []string{"ns/a"}, names(f.list(t, f.stored, "", exactly(a.ResourceVersion))))
}
