// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/integration/etcdserver"
	"github.com/kube-watchcache/watchcache/integration/internal/counting"
	"github.com/kube-watchcache/watchcache/internal/poddata"
)

// TestCountedRequests counts what a cacher asks a real etcd for.
func TestCountedRequests(t *testing.T) {
	server := etcdserver.Start(t, etcdserver.Config{})
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *etcdserver.Server)
	}{
		{"consistent reads share version requests", sharedVersionRequests},
		{"exact versions come from the window", exactFromWindow},
		{"a stale cache lets few reads through", boundedStaleReads},
		{"an index finds the matches only", indexedList},
		{"a consistency check reads no values", keysOnlyCheck},
		{"an event retains no tree", retainedByEvents},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, server) })
	}
}

// arriving is the context of a read; arrived is done when the read waits for
// the first time, which is when it asks what would end the wait.
type arriving struct {
	context.Context
	once    *sync.Once
	arrived *sync.WaitGroup
}

// Done implements context.Context.
func (a arriving) Done() <-chan struct{} {
	a.once.Do(a.arrived.Done)
	return a.Context.Done()
}

// The first version request is answered, and the answer kept back; then an
// object is written and all other reads arrive. They must share one more
// request, which asks for the object's version, too, and none may use the answer
// from before it arrived.
func sharedVersionRequests(t *testing.T, server *etcdserver.Server) {
	const readers = 64
	f := newCounted(t, server, seedPods(10, noLabels))
	thaw := f.Freeze()
	held := f.Hold()
	f.Reset()

	read := func(ctx context.Context, i int) (sawLate bool, err error) {
		if i%2 == 0 {
			list := &example.PodList{}
			err := f.cacher.GetList(ctx, podPrefix, everyPod, list)
			return contains(list, "late"), err
		}
		pod := &example.Pod{}
		err = f.cacher.Get(ctx, podPrefix+"ns/late", storage.GetOptions{IgnoreNotFound: true}, pod)
		return pod.Name == "late", err
	}
	var arrived sync.WaitGroup
	f.readers.Go(func() {
		_, err := read(f.ctx, 0)
		assert.NoError(t, err, "the first read")
		f.clock.waiting <- struct{}{}
	})
	f.await(t, held.Arrived)
	f.put(t, newLabelledPod("ns", "late", nil))
	for i := 1; i < readers; i++ {
		arrived.Add(1)
		ctx := arriving{f.ctx, &sync.Once{}, &arrived}
		f.readers.Go(func() {
			sawLate, err := read(ctx, i)
			assert.NoError(t, err, "read %d", i)
			assert.True(t, sawLate, "read %d does not see the write from before it", i)
			ctx.once.Do(arrived.Done)
			f.clock.waiting <- struct{}{}
		})
	}
	arrived.Wait()
	require.Equal(t, map[counting.Kind]int{counting.Version: 1}, f.Counts(), "while the first answer is kept back")
	close(held.Release)
	for range readers { // has ended too early, or waits for the write to come
		f.await(t, f.clock.waiting)
	}
	thaw()
	f.readers.Wait()
	counts := f.Counts()
	require.Equal(t, map[counting.Kind]int{counting.Version: 1, counting.KeyVersions: 1}, counts)
	t.Logf("%d consistent reads: %v", readers, counts)
}

// churn writes past the cacher, one object at a time, until stop is called.
// churn creates, changes and deletes, and last is its latest revision.
func (f *counted) churn(t *testing.T, objects int, last *atomic.Int64) (stop func()) {
	t.Helper()
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-over:
				return
			default:
			}
			n := i * 7 % (objects + objects/10)
			pod := newLabelledPod("ns-"+strconv.Itoa(n%10), fmt.Sprintf("pod-%05d", n), map[string]string{"write": strconv.Itoa(i)})
			revision, err := f.store(pod)
			if err == nil && i%3 == 0 {
				done, gone := f.client.Delete(f.ctx, f.Prefix()+pod.Namespace+"/"+pod.Name)
				if err = gone; err == nil {
					revision = done.Header.Revision
				}
			}
			if !assert.NoError(t, err, "write %d", i) {
				return
			}
			last.Store(revision)
		}
	})
	stop = sync.OnceFunc(func() {
		close(over)
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// While objects are created, changed and deleted, a version is read in pages,
// and another one whole. The expected objects are read from etcd afterwards.
func exactFromWindow(t *testing.T, server *etcdserver.Server) {
	const objects, limit = 500, 50
	f := newCounted(t, server, seedPods(objects-1, noLabels)) // and the one to warm up
	rv := f.list(t, f.cacher, everyPod).ResourceVersion
	var last atomic.Int64
	last.Store(f.put(t, newLabelledPod("ns-0", "first-write", nil)))
	start := last.Load()
	stop := f.churn(t, objects, &last)
	f.Reset()

	paged := &example.PodList{}
	opts, pages := exactly(rv), 0
	opts.Predicate.Limit = limit
	whole := &example.PodList{}
	for {
		f.goOn(t)
		page := f.list(t, f.cacher, opts)
		require.Equal(t, rv, page.ResourceVersion)
		paged.Items = append(paged.Items, page.Items...)
		if pages++; pages == 5 {
			between := strconv.FormatInt(last.Load(), 10)
			f.goOn(t)
			whole = f.list(t, f.cacher, exactly(between))
		}
		if page.Continue == "" {
			break
		}
		opts.Predicate.Continue, opts.ResourceVersion, opts.ResourceVersionMatch = page.Continue, "", ""
	}
	require.Empty(t, f.Counts(), "reads inside the window")
	writes := last.Load() - start
	stop()
	require.Equal(t, objects/limit, pages)
	require.Len(t, paged.Items, objects)
	f.sameAsStored(t, rv, paged)
	require.NotEmpty(t, whole.ResourceVersion)
	f.sameAsStored(t, whole.ResourceVersion, whole)
	require.Empty(t, f.Counts(), "what etcd was compared by is not counted")

	f.list(t, f.cacher, exactly(strconv.FormatInt(f.seeded-1, 10)))
	require.Equal(t, map[counting.Kind]int{counting.List: 1}, f.Counts(), "a version from before the window")
	t.Logf("%d pages of %d at %s and a list of %d at %s, during %d revisions: no range request; a list before the window: 1",
		pages, limit, rv, len(whole.Items), whole.ResourceVersion, writes)
}

// The cache's watch stands still, an object is written, and all readers wait
// for it in vain. A few LISTs are let through, and
// all GETs.
func boundedStaleReads(t *testing.T, server *etcdserver.Server) {
	const readers, bound = 200, 7
	f := newCounted(t, server, seedPods(10, noLabels), func(cfg *cacher.Config) { cfg.MaxFallbackLists = bound })
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

// A consistent LIST by a selector asks etcd for its version, and looks at what
// the index has under the selector's values.
func indexedList(t *testing.T, server *etcdserver.Server) {
	const objects, shards = 20_000, 200
	seed := seedPods(objects, func(i int) map[string]string {
		return map[string]string{"shard": strconv.Itoa(i % shards), "parity": strconv.Itoa(i / shards % 2)}
	})
	f := newCounted(t, server, seed, func(cfg *cacher.Config) { cfg.LabelIndexes = []string{"shard"} })
	for _, tc := range []struct {
		selector           string
		matches, evaluated int
	}{
		{"shard=7", objects / shards, objects / shards},
		{"shard in (7,8,none)", 2 * objects / shards, 2 * objects / shards},
		{"shard=7,parity=1", objects / shards / 2, objects / shards},
		{"shard=none", 0, 0},
		{"parity=1", objects / 2, objects + 1}, // has no index: that of newCounted, too
	} {
		selector, err := labels.Parse(tc.selector)
		require.NoError(t, err)
		opts := everyPod
		opts.Predicate = storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: poddata.Attrs}
		f.Reset()
		before := f.metric(t, "list_evaluated_objects_total")
		list := f.list(t, f.cacher, opts)
		evaluated := int(f.metric(t, "list_evaluated_objects_total") - before)
		counts := f.Counts()
		t.Logf("LIST %s of %d objects: %d items, %d evaluated; %v", tc.selector, objects, len(list.Items), evaluated, counts)
		require.Len(t, list.Items, tc.matches, tc.selector)
		for i := range list.Items {
			require.True(t, selector.Matches(labels.Set(list.Items[i].Labels)), tc.selector)
		}
		require.Equal(t, tc.evaluated, evaluated, tc.selector)
		require.Equal(t, map[counting.Kind]int{counting.Version: 1}, counts, tc.selector)
	}
}

// The cache is compared with etcd without a value crossing the wire.
func keysOnlyCheck(t *testing.T, server *etcdserver.Server) {
	const objects, checks = 500, 3
	f := newCounted(t, server, seedPods(objects-1, noLabels), func(cfg *cacher.Config) {
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

// An event keeps the object as it was before, and so about what an object
// takes, whatever the number of objects. A snapshot is taken at each.
func retainedByEvents(t *testing.T, server *etcdserver.Server) {
	const objects, writers, writes = 2_000, 8, 500
	const events = writers * writes
	unobserved := func(cfg *cacher.Config) {
		cfg.DisableSizeEstimation = true    // storage would keep the cache
		cfg.EventsHistoryWindow = time.Hour // however slow the machine is
	}
	f := newCounted(t, server, seedPods(objects-1, noLabels), unobserved)
	perObject := f.drop(t) / objects
	require.Greater(t, perObject, int64(500), "what an object takes in the cache: it was not measured")

	f.start(t, server, unobserved)
	var snapshots sync.Map
	for w := range writers {
		f.readers.Go(func() {
			for i := range writes {
				n := (i*writers + w) % (objects - 1)
				revision, err := f.store(newLabelledPod("ns-"+strconv.Itoa(n%10), fmt.Sprintf("pod-%05d", n), nil))
				opts := everyPod
				opts.Predicate.Limit = 1
				opts.ResourceVersion, opts.ResourceVersionMatch = strconv.FormatInt(revision, 10), metav1.ResourceVersionMatchNotOlderThan
				list := &example.PodList{}
				if err == nil {
					err = f.cacher.GetList(f.ctx, podPrefix, opts, list)
				}
				if !assert.NoError(t, err, "write %d of writer %d", i, w) {
					return
				}
				snapshots.Store(list.ResourceVersion, true)
			}
		})
	}
	f.readers.Wait()
	require.GreaterOrEqual(t, f.cacher.Status().WindowEvents, events, "the window has them all")
	taken := 0
	snapshots.Range(func(any, any) bool { taken++; return true })
	require.Greater(t, taken, events/writers/2, "versions that were read")

	perEvent := (f.drop(t) - perObject*objects) / events
	t.Logf("%d events on %d objects, read at %d versions: an event retains %d bytes, an object %d", events, objects, taken, perEvent, perObject)
	require.Less(t, perEvent, perObject+beyondObject, "bytes that an event retains; an object takes %d", perObject)
	require.Greater(t, perEvent, perObject/4, "it was not measured")
}

// beyondObject is how many bytes an event may retain beyond the object that it
// replaces: a path to a leaf takes more, in any tree of some thousand objects.
const beyondObject = 128
