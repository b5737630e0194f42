// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// TestSharedInformer holds the contract of cache.SharedInformer and
// cache.SharedIndexInformer, apart from what is about handlers.
func TestSharedInformer(t *testing.T) {
	t.Run("equals etcd in the end", func(t *testing.T) { bothWays(t, testEquality) })
	t.Run("equals etcd in all namespaces", func(t *testing.T) { bothWays(t, testAllNamespaces) })
	t.Run("keeps to its selector", func(t *testing.T) { bothWays(t, testSelector) })
	t.Run("indexes what it has", func(t *testing.T) { bothWays(t, testIndexes) })
	t.Run("shows an ordered subsequence of the states", func(t *testing.T) { bothWays(t, testSubsequence) })
	t.Run("transforms before anybody sees it", func(t *testing.T) { bothWays(t, testTransform) })
	t.Run("WaitForCacheSync", func(t *testing.T) { bothWaysAtOnce(t, testWaitForCacheSync) })
	t.Run("stops for good and another one takes over", func(t *testing.T) { bothWays(t, testStop) })
	t.Run("tells the WatchErrorHandler and recovers", func(t *testing.T) { bothWaysAtOnce(t, testWatchErrorHandler) })
}

// recorded gives an informer and the recorder that it lists and watches by, for
// tests that get in its way.
func recorded(t *testing.T, w *world, via way, namespace string) (cache.SharedIndexInformer, *recorder) {
	t.Helper()
	r := via.listerWatcher(t, w, namespace, nil)
	return cache.NewSharedIndexInformer(r, via.example(), 0, cache.Indexers{}), r
}

func testEquality(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	w.writer(t, w.newNamespace(t)).create(t, "elsewhere")
	d := w.writer(t, ns)
	d.createMany(t, "early", 10)
	informer := via.informer(t, w, ns, 0, nil)
	run(t, informer)
	w.requireEqual(t, informer.GetStore(), ns)
	d.createMany(t, "late", 10)
	for i := range 5 {
		d.update(t, fmt.Sprintf("early-%03d", i), "someone")
		d.delete(t, fmt.Sprintf("late-%03d", i))
	}
	w.requireEqual(t, informer.GetStore(), ns)
	for _, name := range informer.GetStore().ListKeys() {
		_, name, err := cache.SplitMetaNamespaceKey(name)
		require.NoError(t, err)
		d.delete(t, name)
	}
	w.requireEqual(t, informer.GetStore(), ns)
	require.Empty(t, informer.GetStore().List())
}

func testAllNamespaces(t *testing.T, w *world, via way) {
	one, two := w.writer(t, w.newNamespace(t)), w.writer(t, w.newNamespace(t))
	one.create(t, "same-name")
	informer := via.informer(t, w, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	run(t, informer)
	two.create(t, "same-name")
	w.requireEqual(t, informer.GetStore())
	for _, d := range []devices{one, two} {
		found, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, d.namespace)
		require.NoError(t, err)
		require.Len(t, found, 1)
	}
}

// testSelector: an object that comes to fit the selector is added, one that ceases
// to is deleted.
func testSelector(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "one")
	d.create(t, "two")
	r := via.listerWatcher(t, w, ns, func(o *metav1.ListOptions) { o.FieldSelector = "spec.owner=chosen" })
	informer := cache.NewSharedIndexInformer(r, via.example(), 0, cache.Indexers{})
	o, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	require.Empty(t, informer.GetStore().List())

	chosen := d.update(t, "one", "chosen")
	require.Equal(t, toldAdd, o.awaitVersion(t, ns+"/one", chosen.ResourceVersion).kind)
	left := d.update(t, "one", "somebody")
	gone := o.awaitDeleted(t, ns+"/one")
	require.Equal(t, left.ResourceVersion, gone.resourceVersion())
	require.Equal(t, "chosen", mustInternal(t, gone.object).Spec.Owner, "the last state that was selected")
	d.update(t, "two", "chosen")
	o.awaitVersion(t, ns+"/two", w.version(t, ns, "two"))
	require.Equal(t, []string{ns + "/two"}, informer.GetStore().ListKeys())
}

func testIndexes(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.createMany(t, "indexed", 6)
	byOwner := func(obj any) ([]string, error) {
		device, err := toInternal(obj.(runtime.Object))
		if err != nil {
			return nil, err
		}
		return []string{device.Spec.Owner}, nil
	}
	informer := via.informer(t, w, ns, 0, cache.Indexers{"owner": byOwner})
	run(t, informer)
	for i := range 3 {
		d.update(t, fmt.Sprintf("indexed-%03d", i), "someone")
	}
	d.delete(t, "indexed-000")
	w.requireEqual(t, informer.GetIndexer(), ns)
	for owner, want := range map[string][]string{
		"someone":   {ns + "/indexed-001", ns + "/indexed-002"},
		"field-ops": {ns + "/indexed-003", ns + "/indexed-004", ns + "/indexed-005"},
	} {
		keys, err := informer.GetIndexer().IndexKeys("owner", owner)
		require.NoError(t, err)
		slices.Sort(keys)
		require.Equal(t, want, keys, owner)
	}
	// An index that is added later has what is there already.
	require.NoError(t, informer.AddIndexers(cache.Indexers{"late": byOwner}))
	found, err := informer.GetIndexer().ByIndex("late", "someone")
	require.NoError(t, err)
	require.Len(t, found, 2)
}

// testSubsequence writes from several sides and breaks the connection meanwhile.
func testSubsequence(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	start := w.revision(t)
	informer, r := recorded(t, w, via, ns)
	before, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	other, _ := observe(t, informer)

	var writers sync.WaitGroup
	for i := range 3 {
		d := w.writer(t, ns)
		writers.Go(func() { d.scribble(t, fmt.Sprintf("writer-%d", i), 60) })
	}
	// A watch that has brought something is resumed at once when it breaks.
	for range 5 {
		told := len(before.seen())
		eventually(t, "nothing is told", func(context.Context) error {
			if len(before.seen()) == told {
				return errors.New("no notification")
			}
			return nil
		})
		via.cut(t, w, r)
	}
	writers.Wait()
	w.requireEqual(t, informer.GetStore(), ns)
	w.requireTold(t, before, ns)
	w.requireTold(t, other, ns)

	history := w.history(t, ns, start)
	require.Greater(t, len(history), 6)
	for _, o := range []*observer{before, other} {
		requireSubsequence(t, history, o.seen())
	}
	// The two handlers saw the same, as both were there before anything came.
	require.Equal(t, summary(before.seen()), summary(other.seen()))
}

// scribble does n writes at random to four devices of its own.
func (d devices) scribble(t *testing.T, prefix string, n int) {
	exists := map[string]bool{}
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, rand.IntN(4))
		switch {
		case !exists[name]:
			d.create(t, name)
			exists[name] = true
		case rand.IntN(4) == 0:
			d.delete(t, name)
			exists[name] = false
		default:
			d.update(t, name, fmt.Sprintf("owner-%d", i))
		}
	}
}

// testTransform: a transform may write to what it gets, which is nobody else's,
// whether it was listed or streamed.
func testTransform(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	w.settle(t, d.createMany(t, "early", 3)[2].ResourceVersion)
	listed, r := recorded(t, w, via, ns)
	r.plain = true
	transformed := []cache.SharedIndexInformer{via.informer(t, w, ns, 0, nil), listed}
	plain := via.informer(t, w, ns, 0, nil)
	run(t, plain)
	var observers []*observer
	for _, informer := range transformed {
		require.NoError(t, informer.SetTransform(transform))
		o, _ := observe(t, informer)
		run(t, informer)
		awaitSync(t, informer.HasSyncedChecker())
		require.ErrorContains(t, informer.SetTransform(nil), "started")
		observers = append(observers, o)
	}
	d.update(t, "early-001", "someone")
	d.create(t, "late")
	d.delete(t, "early-002")

	for i, o := range observers {
		w.requireTold(t, o, ns)
		for _, n := range o.seen() {
			got := mustInternal(t, n.object)
			require.Empty(t, got.ManagedFields)
			if n.kind != toldDelete {
				require.Equal(t, "by "+n.resourceVersion(), got.Labels["transformed"])
			}
		}
		require.Len(t, transformed[i].GetStore().List(), 3)
		for _, obj := range transformed[i].GetStore().List() {
			require.Contains(t, mustInternal(t, obj).Labels, "transformed")
		}
	}
	// Neither another informer nor the server's cache has anything of it.
	w.requireEqual(t, plain.GetStore(), ns)
	list, err := via.listerWatcher(t, w, ns, nil).List(metav1.ListOptions{})
	require.NoError(t, err)
	require.NoError(t, difference(storeOf(t, list), w.stored(t, ns)))
}

// transform is a cache.TransformFunc that writes to the object itself, and to what
// the object points to.
func transform(obj any) (any, error) {
	object, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", obj)
	}
	object.SetManagedFields(nil)
	object.GetLabels()["transformed"] = "by " + object.GetResourceVersion()
	return obj, nil
}

func testWaitForCacheSync(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	w.writer(t, ns).create(t, "one")
	informer, r := recorded(t, w, via, ns)
	ready := via.informer(t, w, ns, 0, nil)
	r.refuse(errors.New("not yet"))
	run(t, informer)
	run(t, ready)
	require.True(t, cache.WaitForCacheSync(within(t).Done(), ready.HasSynced))

	stopped := make(chan struct{})
	close(stopped)
	require.False(t, cache.WaitForCacheSync(stopped, ready.HasSynced, informer.HasSynced), "one has not synced")
	require.False(t, informer.HasSynced())

	r.refuse(nil)
	require.True(t, cache.WaitForCacheSync(within(t).Done(), ready.HasSynced, informer.HasSynced))
	require.NoError(t, difference(informer.GetStore(), w.stored(t, ns)), "synced, and yet not complete")
	require.NoError(t, difference(ready.GetStore(), w.stored(t, ns)))
	require.True(t, cache.WaitFor(within(t), "", ready.HasSyncedChecker(), informer.HasSyncedChecker()))
}

func testStop(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "early")
	first := via.informer(t, w, ns, 0, nil)
	o, _ := observe(t, first)
	stop := run(t, first)
	w.requireEqual(t, first.GetStore(), ns)
	stop()
	require.True(t, first.IsStopped())
	before, known := w.stored(t, ns), len(o.seen())

	d.update(t, "early", "someone")
	d.create(t, "late")
	second := via.informer(t, w, ns, 0, nil)
	run(t, second)
	w.requireEqual(t, second.GetStore(), ns)

	// The first one is as it was, and stays so.
	run(t, first)
	require.NoError(t, difference(first.GetStore(), before))
	require.Len(t, o.seen(), known)
	_, err := first.AddEventHandler(&observer{})
	require.ErrorContains(t, err, "stopped")
}

func testWatchErrorHandler(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "one")
	informer, r := recorded(t, w, via, ns)
	failures := make(chan error, 100)
	require.NoError(t, informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failures <- err }))
	refusal := errors.New("refused by the test")
	r.refuse(refusal)
	run(t, informer)
	select {
	case err := <-failures:
		require.ErrorIs(t, err, refusal)
	case <-within(t).Done():
		t.Fatal("the handler is not called")
	}
	r.refuse(nil)
	w.requireEqual(t, informer.GetStore(), ns)
}
