// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// TestSharedInformer holds the contract of cache.SharedInformer and
// cache.SharedIndexInformer, apart from what is about handlers.
func TestSharedInformer(t *testing.T) {
	t.Run("equals etcd in the end", func(t *testing.T) { bothTransports(t, testEquality) })
	t.Run("equals etcd in all namespaces", func(t *testing.T) { bothTransports(t, testAllNamespaces) })
	t.Run("keeps to its selector", func(t *testing.T) { bothTransports(t, testSelector) })
	t.Run("shows an ordered subsequence of the states", func(t *testing.T) { bothTransports(t, testSubsequence) })
	t.Run("transforms before anybody sees it", func(t *testing.T) { bothTransports(t, testTransform) })
	t.Run("WaitForCacheSync", func(t *testing.T) { bothTransports(t, testWaitForCacheSync) })
}

// recorded gives an informer and the recorder that it lists and watches by, for
// tests that get in its way.
func recorded(t *testing.T, fx *fixture, via transport, namespace string) (cache.SharedIndexInformer, *recorder) {
	t.Helper()
	r := via.listerWatcher(t, fx, namespace, nil)
	return cache.NewSharedIndexInformer(r, via.example(), 0, cache.Indexers{}), r
}

func testEquality(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	fx.writer(t, fx.newNamespace(t)).create(t, "elsewhere")
	d := fx.writer(t, ns)
	d.createMany(t, "early", 10)
	informer := via.informer(t, fx, ns, 0, nil)
	run(t, informer)
	fx.requireEqual(t, informer.GetStore(), ns)
	d.createMany(t, "late", 10)
	for i := range 5 {
		d.update(t, fmt.Sprintf("early-%03d", i), "someone")
		d.delete(t, fmt.Sprintf("late-%03d", i))
	}
	fx.requireEqual(t, informer.GetStore(), ns)
	for _, name := range informer.GetStore().ListKeys() {
		_, name, err := cache.SplitMetaNamespaceKey(name)
		require.NoError(t, err)
		d.delete(t, name)
	}
	fx.requireEqual(t, informer.GetStore(), ns)
	require.Empty(t, informer.GetStore().List())
}

func testAllNamespaces(t *testing.T, fx *fixture, via transport) {
	one, two := fx.writer(t, fx.newNamespace(t)), fx.writer(t, fx.newNamespace(t))
	one.create(t, "same-name")
	informer := via.informer(t, fx, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	run(t, informer)
	two.create(t, "same-name")
	fx.requireEqual(t, informer.GetStore())
	for _, d := range []devices{one, two} {
		found, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, d.namespace)
		require.NoError(t, err)
		require.Len(t, found, 1)
	}
}

// testSelector: an object that comes to fit the selector is added, one that ceases
// to is deleted.
func testSelector(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "one")
	d.create(t, "two")
	r := via.listerWatcher(t, fx, ns, func(o *metav1.ListOptions) { o.FieldSelector = "spec.owner=chosen" })
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
	o.awaitVersion(t, ns+"/two", fx.version(t, ns, "two"))
	require.Equal(t, []string{ns + "/two"}, informer.GetStore().ListKeys())
}

// testSubsequence writes from several sides and breaks the connection meanwhile.
func testSubsequence(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	start := fx.revision(t)
	informer, r := recorded(t, fx, via, ns)
	before, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	other, _ := observe(t, informer)

	writing, enough := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i := range 3 {
		d := fx.writer(t, ns)
		writers.Go(func() { d.scribble(writing, t, fmt.Sprintf("writer-%d", i), 60) })
	}
	defer writers.Wait()
	defer enough()
	// A watch that has brought something is resumed at once when it breaks.
	for range 5 {
		told := len(before.seen())
		eventually(t, "nothing is told", func(context.Context) error {
			if len(before.seen()) == told {
				return errors.New("no notification")
			}
			return nil
		})
		via.cut(t, fx, r)
	}
	enough()
	writers.Wait()
	fx.requireEqual(t, informer.GetStore(), ns)
	fx.requireTold(t, before, ns)
	fx.requireTold(t, other, ns)

	history := fx.history(t, ns, start)
	require.Greater(t, len(history), 6)
	for _, o := range []*observer{before, other} {
		requireSubsequence(t, history, o.seen())
	}
	// The two handlers saw the same, as both were there before anything came.
	require.Equal(t, summary(before.seen()), summary(other.seen()))
}

// scribble does at least n writes, until the context is done, at random to four
// devices of its own.
func (d devices) scribble(ctx context.Context, t *testing.T, prefix string, n int) {
	exists := map[string]bool{}
	for i := 0; i < n || ctx.Err() == nil; i++ {
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
func testTransform(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	fx.settle(t, d.createMany(t, "early", 3)[2].ResourceVersion)
	listed, r := recorded(t, fx, via, ns)
	r.plain = true
	transformed := []cache.SharedIndexInformer{via.informer(t, fx, ns, 0, nil), listed}
	plain := via.informer(t, fx, ns, 0, nil)
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
		fx.requireTold(t, o, ns)
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
	fx.requireEqual(t, plain.GetStore(), ns)
	list, err := via.listerWatcher(t, fx, ns, nil).List(metav1.ListOptions{})
	require.NoError(t, err)
	require.NoError(t, difference(storeOf(t, list), fx.stored(t, ns)))
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

// testWaitForCacheSync: an informer that says that it is in sync has everything that
// had been written before it began.
func testWaitForCacheSync(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	fx.settle(t, fx.writer(t, ns).create(t, "one").ResourceVersion)
	informer := via.informer(t, fx, ns, 0, nil)
	run(t, informer)
	require.True(t, cache.WaitForCacheSync(within(t).Done(), informer.HasSynced))
	require.NoError(t, difference(informer.GetStore(), fx.stored(t, ns)), "synced, and yet not complete")
}
