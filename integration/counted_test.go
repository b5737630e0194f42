// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
)

// TestCountedRequests counts what a cacher asks a real etcd for.
func TestCountedRequests(t *testing.T) {
	server := etcdserver.Start(t, etcdserver.Config{})
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *etcdserver.Server)
	}{
		{"a stale cache lets few reads through", boundedStaleReads},
		{"a consistency check reads no values", keysOnlyCheck},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, server) })
	}
}

// The cache's watch stands still, an object is written, and all readers wait
// for it in vain. A few LISTs are let through, and
// all GETs.
func boundedStaleReads(t *testing.T, server *etcdserver.Server) {
	const readers, bound = 200, 7
	f := newCounted(t, server, seedPods(10), func(cfg *cacher.Config) { cfg.MaxFallbackLists = bound })
	thaw := f.Freeze()
	f.put(t, newLabelledPod("ns", "late", nil))
	f.Reset()

	outcomes := make(chan error, readers)
	read := func() error {
		list := &example.PodList{}
		err := f.cacher.GetList(f.ctx, podPrefix, everyPod, list)
		if err == nil && !contains(list, "late") {
			err = fmt.Errorf("a consistent list at %s lacks what was written before it", list.ResourceVersion)
		}
		return err
	}
	begin := func() {
		for range readers {
			f.readers.Go(func() { outcomes <- read() })
		}
	}
	settle := func() (served, refused int) {
		for range readers {
			switch err := <-outcomes; {
			case err == nil:
				served++
			case apierrors.IsTooManyRequests(err):
				refused++
				after, ok := apierrors.SuggestsClientDelay(err)
				require.True(t, ok && after > 0, "no Retry-After in %v", err)
			default:
				assert.NoError(t, err, "a reader of a stale cache")
			}
		}
		return served, refused
	}

	begin()
	for range readers {
		f.await(t, f.clock.waiting)
	}
	require.Zero(t, f.Counts()[counting.List]+f.Counts()[counting.Object], "while they wait")
	f.clock.expire()
	served, refused := settle()
	counts := f.Counts()
	t.Logf("%d readers of a stale cache, MaxFallbackLists %d: %d served, %d told to retry; %v", readers, bound, served, refused, counts)
	require.Equal(t, bound, counts[counting.List]+counts[counting.Object])
	require.Equal(t, bound, served)
	require.Equal(t, readers-bound, refused)

	begin() // at once again
	served, refused = settle()
	require.Zero(t, served)
	require.Equal(t, readers, refused)
	require.Equal(t, bound, f.Counts()[counting.List])
	for range readers {
		require.NoError(t, f.cacher.Get(f.ctx, podPrefix+"ns/late", storage.GetOptions{}, &example.Pod{}))
	}
	counts = f.Counts()
	require.Equal(t, bound, counts[counting.List])
	require.Equal(t, readers, counts[counting.Object])
	require.EqualValues(t, bound+readers, f.metric(t, "stale_reads_total", "storage"))

	thaw()
	late := f.put(t, newLabelledPod("ns", "later", nil))
	require.NoError(t, wait.PollUntilContextTimeout(f.ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return f.cacher.Status().ResourceVersion >= uint64(late), nil
	}))
	f.Reset()
	require.NoError(t, read())
	require.Equal(t, map[counting.Kind]int{counting.Version: 1}, f.Counts(), "the cache has caught up")
}

// The cache is compared with etcd without a value crossing the wire.
func keysOnlyCheck(t *testing.T, server *etcdserver.Server) {
	const objects, checks = 500, 3
	f := newCounted(t, server, seedPods(objects-1), func(cfg *cacher.Config) {
		cfg.ConsistencyCheckInterval = time.Second
	})
	loaded := 0
	for _, r := range f.Seen() {
		if r.Kind == counting.List {
			loaded += r.Bytes
		}
	}
	require.Positive(t, loaded, "values that the cache was filled with")
	f.Reset()
	passed := func() float64 { return f.metric(t, "consistency_checks_total", "passed") }
	before := passed()
	require.NoError(t, wait.PollUntilContextTimeout(f.ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		return passed() >= before+checks, nil
	}))
	requests := f.Seen()
	require.GreaterOrEqual(t, len(requests), checks)
	bytes, returned := 0, 0
	for _, r := range requests {
		require.Equal(t, counting.Keys, r.Kind)
		require.Positive(t, r.Revision, "a check is of one version")
		bytes += r.Bytes
		returned = max(returned, r.Returned)
	}
	require.Equal(t, objects, returned)
	require.Zero(t, bytes)
	require.Zero(t, f.metric(t, "consistency_checks_total", "failed"))
	t.Logf("%d checks of %d objects: %d bytes of values; the cache was filled with %d", len(requests), objects, bytes, loaded)
}
