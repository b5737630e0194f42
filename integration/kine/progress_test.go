// SPDX-License-Identifier: Apache-2.0

package kine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// TestWatchProgress: whatever version of etcd kine says that it is, its progress
// reports are not believed, and consistent reads are its own.
func TestWatchProgress(t *testing.T) { onEach(t, testWatchProgress) }

func testWatchProgress(t *testing.T, db database) {
	t.Parallel()
	for _, answer := range []string{"3.6.11", "3.5.0", ""} { // the first is kine's default
		t.Run("version "+answer, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, startKine(t, db, func(c *config) { c.version = answer }))
			require.False(t, f.backend.WatchProgress())
			pod := f.create(t, f.stored, "ns/a")
			f.reached(t, pod.ResourceVersion)
			before := f.metric(t, "reads_total", "delegate")
			require.Equal(t, []string{"ns/a"}, names(f.list(t, f.cacher, "", from(""))))
			delegated := f.metric(t, "reads_total", "delegate") - before
			require.EqualValues(t, 1, delegated, "a consistent read is kine's")
		})
	}
}

// TestProgressOfAnIdleResource: a cache to which nothing happens learns what
// version it is at when it asks, and not from reports that kine sends unasked.
func TestProgressOfAnIdleResource(t *testing.T) { onEach(t, testProgressOfAnIdleResource) }

func testProgressOfAnIdleResource(t *testing.T, db database) {
	t.Parallel()
	t.Run("asked", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, startKine(t, db), cacher.Configure(func(c *cacher.Config) { c.WatchProgress = func() bool { return true } }))
		f.create(t, f.stored, "ns/a")
		other := f.touch(t)
		f.requests.Reset()
		list := f.list(t, f.cacher, "", from(""))
		require.GreaterOrEqual(t, version(t, list.ResourceVersion), other)
		require.EqualValues(t, 1, f.metric(t, "reads_total", "consistent"))
		ranges := f.requests.Counts()
		require.Positive(t, ranges[counting.Version]) // more than one if kine is slow: see cacher/internal/freshness/requester.go
		delete(ranges, counting.Version)
		require.Empty(t, ranges)
	})
	t.Run("unasked", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, startKine(t, db, func(c *config) { c.notify = 10 * time.Millisecond }), noProgress)
		before, other := f.cacher.Status().ResourceVersion, f.touch(t)
		reports := 0
		for answer := range f.client().Watch(f.ctx, "/none", clientv3.WithProgressNotify()) {
			if answer.IsProgressNotify() && uint64(answer.Header.Revision) >= other {
				reports++
			}
			if reports == 20 {
				break
			}
		}
		require.Equal(t, 20, reports)
		require.Less(t, before, other)
		require.Equal(t, before, f.cacher.Status().ResourceVersion)
	})
}

// TestConsistentReads: without kine's progress reports consistent reads go to
// kine, and who has written finds what was written, at once.
func TestConsistentReads(t *testing.T) { onEach(t, testConsistentReads) }

func testConsistentReads(t *testing.T, db database) {
	t.Parallel()
	const writers, rounds = 4, 50
	f := newFixture(t, startKine(t, db), noProgress)
	f.requests.Reset()
	var group errgroup.Group
	for w := range writers {
		group.Go(func() error {
			for i := range rounds {
				if err := f.readOwnWrite(fmt.Sprintf("ns-%d/pod-%d", w, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	const each = writers * rounds
	require.EqualValues(t, each, f.metric(t, "reads_total", "get", "delegate"))
	require.EqualValues(t, each, f.metric(t, "reads_total", "list", "delegate"))
	ranges := f.requests.Counts()
	require.Equal(t, map[counting.Kind]int{counting.Object: each, counting.List: each}, ranges)
	require.Zero(t, f.metric(t, "stale_reads_total"))
	require.EqualValues(t, 1, f.metric(t, "relists_total"))
}

// TestReadsAfterWrites: LISTs after writes at the same time are as new as these, whether
// kine's progress is trusted or not, and the log says how long each takes.
func TestReadsAfterWrites(t *testing.T) { onEach(t, testReadsAfterWrites) }

func testReadsAfterWrites(t *testing.T, db database) {
	t.Parallel()
	const rounds = 5
	for _, progress := range []bool{true, false} {
		f := newFixture(t, startKine(t, db), cacher.Configure(func(c *cacher.Config) { c.WatchProgress = func() bool { return progress } }))
		var took time.Duration
		for round := range rounds {
			last := f.atOnce(t, round)
			asked := time.Now()
			list := f.list(t, f.cacher, "", from(""))
			took += time.Since(asked)
			require.GreaterOrEqual(t, version(t, list.ResourceVersion), uint64(last))
		}
		t.Logf("progress trusted: %t, each LIST: %v", progress, took/rounds)
	}
}

// readOwnWrite creates a Pod and reads it, in each way that must find it.
func (f *fixture) readOwnWrite(name string) error {
	created, got, list := &example.Pod{}, &example.Pod{}, &example.PodList{}
	if err := f.stored.Create(f.ctx, f.prefix+name, poddata.Pod(name), created, 0); err != nil {
		return err
	}
	if err := f.cacher.Get(f.ctx, f.prefix+name, storage.GetOptions{}, got); err != nil {
		return fmt.Errorf("GET of %s, which was created at %s: %w", name, created.ResourceVersion, err)
	}
	if err := f.cacher.GetList(f.ctx, f.prefix, from(""), list); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Name == created.Name && list.Items[i].Namespace == created.Namespace {
			return nil
		}
	}
	return fmt.Errorf("LIST at %s is without %s, which was created at %s", list.ResourceVersion, name, created.ResourceVersion)
}

// TestInitialEvents: a watch that wants the initial state at the most recent
// version is refused without progress reports, so that its client lists; one
// that wants it at a version that the cache has is served.
func TestInitialEvents(t *testing.T) { onEach(t, testInitialEvents) }

func testInitialEvents(t *testing.T, db database) {
	t.Parallel()
	kine := startKine(t, db)
	for name, progress := range map[string]bool{"reported": true, "unknown": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, kine, cacher.Configure(func(c *cacher.Config) { c.WatchProgress = func() bool { return progress } }))
			f.create(t, f.stored, name+"/a")
			pod := f.create(t, f.stored, name+"/b")
			f.reached(t, pod.ResourceVersion)
			versions := []string{"0", pod.ResourceVersion}
			if progress {
				versions = append(versions, "")
			} else {
				e := f.next(t, f.watch(t, f.cacher, name+"/", streamed("")))
				_, err := changeOf(e)
				require.ErrorContains(t, err, "list and watch instead")
			}
			for _, rv := range versions {
				w := f.watch(t, f.cacher, name+"/", streamed(rv))
				for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Bookmark} {
					require.Equal(t, want, f.next(t, w).Type, "from %q", rv)
				}
			}
		})
	}
}

// touch writes something that is no Pod and returns its version.
func (f *fixture) touch(t *testing.T) uint64 {
	t.Helper()
	out := &example.Pod{}
	require.NoError(t, others.raw(t, f.direct).Create(f.ctx, others.prefix+"ns/a", poddata.Pod("ns/a"), out, 0))
	return version(t, out.ResourceVersion)
}
