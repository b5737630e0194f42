// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
)

// TestEventHandlers holds what cache.SharedInformer promises its handlers. That a
// handler is called one at a time is checked for every observer of every test.
func TestEventHandlers(t *testing.T) {
	t.Run("are told every change in order", func(t *testing.T) { bothWays(t, testOrder) })
	t.Run("do not wait for each other", func(t *testing.T) { bothWays(t, testBlockedHandler) })
	t.Run("added late get the existing objects first", func(t *testing.T) { bothWays(t, testLateHandler) })
	t.Run("have a HasSynced each", func(t *testing.T) { bothWays(t, testHasSynced) })
	t.Run("resync if they asked to at their period", func(t *testing.T) { bothWaysAtOnce(t, testResync) })
	t.Run("can be removed", func(t *testing.T) { bothWays(t, testRemove) })
}

// testOrder: with nothing in between, a handler is told each single state.
func testOrder(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	start := w.revision(t)
	informer := via.informer(t, w, ns, 0, nil)
	o, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	d := w.writer(t, ns)
	for _, name := range []string{"one", "two"} {
		d.create(t, name)
		for i := range 5 {
			d.update(t, name, fmt.Sprintf("owner-%d", i))
		}
		d.delete(t, name)
	}
	for _, name := range []string{"one", "two"} {
		key := ns + "/" + name
		o.awaitDeleted(t, key)
		var told []string
		for _, n := range o.of(key) {
			told = append(told, string(n.kind))
		}
		require.Equal(t, []string{"add", "update", "update", "update", "update", "update", "delete"}, told)
	}
	history := w.history(t, ns, start)
	requireSubsequence(t, history, o.seen())
	require.Len(t, o.seen(), len(history[ns+"/one"])+len(history[ns+"/two"]))
	// What is the old state of an update was the new one of what came before.
	for _, name := range []string{"one", "two"} {
		told := o.of(ns + "/" + name)
		for i, n := range told[:len(told)-1] {
			if i > 0 {
				require.Equal(t, told[i-1].resourceVersion(), resourceVersionOf(n.old))
			}
		}
	}
}

func testBlockedHandler(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	informer := via.informer(t, w, ns, 0, nil)
	blocked, _ := observe(t, informer)
	free, _ := observe(t, informer)
	blocked.block(t)
	run(t, informer)
	d.createMany(t, "many", 30)
	for i := range 30 {
		d.update(t, fmt.Sprintf("many-%03d", i), "someone")
	}
	d.delete(t, "many-000")
	w.requireTold(t, free, ns)
	w.requireEqual(t, informer.GetStore(), ns)
	require.True(t, blocked.blocked())
	require.Empty(t, blocked.seen())

	blocked.unblock()
	w.requireTold(t, blocked, ns)
	require.Equal(t, summary(free.seen()), summary(blocked.seen()), "it has missed something")
}

// testLateHandler adds a handler while objects are written to.
func testLateHandler(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	start := w.revision(t)
	d := w.writer(t, ns)
	d.createMany(t, "early", 20)
	informer := via.informer(t, w, ns, 0, nil)
	run(t, informer)
	w.requireEqual(t, informer.GetStore(), ns)

	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range 20 {
			d.update(t, fmt.Sprintf("early-%03d", i), "someone")
		}
		d.create(t, "late")
	}()
	o, registration := observe(t, informer)
	awaitSync(t, registration.HasSyncedChecker())
	<-written
	w.requireTold(t, o, ns)

	first := map[string]bool{}
	for i, n := range o.seen() {
		if i < 20 {
			require.Equal(t, toldAdd, n.kind, "%v", summary(o.seen()))
			require.True(t, n.initial)
			first[n.key] = true
			continue
		}
		require.False(t, n.initial)
		require.True(t, n.kind == toldUpdate && first[n.key] || n.kind == toldAdd && n.key == ns+"/late", "%v", summary(o.seen()))
	}
	require.Len(t, first, 20)
	requireSubsequence(t, w.history(t, ns, start), o.seen())
}

func testHasSynced(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.createMany(t, "early", 3)
	informer := via.informer(t, w, ns, 0, nil)
	slow, slowSync := observe(t, informer)
	slow.block(t)
	_, quickSync := observe(t, informer)
	require.False(t, quickSync.HasSynced(), "nothing runs yet")
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	awaitSync(t, quickSync.HasSyncedChecker())
	require.False(t, slowSync.HasSynced(), "it is busy with the first of the initial objects")

	// The same for one that is added when all that is long over.
	late := &observer{}
	late.block(t)
	lateSync := register(t, informer, late)
	eventually(t, "the handler is not called", func(context.Context) error {
		if !late.blocked() {
			return errors.New("no call")
		}
		return nil
	})
	require.False(t, lateSync.HasSynced())
	slow.unblock()
	late.unblock()
	awaitSync(t, slowSync.HasSyncedChecker())
	awaitSync(t, lateSync.HasSyncedChecker())
	for _, o := range []*observer{slow, late} {
		require.Len(t, o.seen(), 3, "synced means that the initial objects were handled")
		for _, n := range o.seen() {
			require.True(t, n.initial)
		}
	}
	// Without anything to list, one is in sync as well.
	empty := via.informer(t, w, w.newNamespace(t), 0, nil)
	_, emptySync := observe(t, empty)
	run(t, empty)
	awaitSync(t, emptySync.HasSyncedChecker())
}

// testResync has handlers that ask for the shortest period that there is, for twice
// that, and for none.
func testResync(t *testing.T, w *world, via way) {
	const period = time.Second
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.createMany(t, "resynced", 2)
	informer := via.informer(t, w, ns, period, nil)
	every := func(period time.Duration) cache.HandlerOptions { return cache.HandlerOptions{ResyncPeriod: &period} }
	never, _ := observe(t, informer, every(0))
	second, _ := observe(t, informer, every(2*period))
	first, _ := observe(t, informer) // as the informer
	run(t, informer)

	await := func(o *observer, rounds int) {
		eventually(t, "there are too few resyncs", func(context.Context) error {
			if n := len(o.resyncs()); n < 2*rounds {
				return fmt.Errorf("%d of %d", n, 2*rounds)
			}
			return nil
		})
	}
	await(second, 2)
	await(first, 4) // of the same time, or of earlier ones
	rounds := len(first.resyncs()) / 2
	require.LessOrEqual(t, len(second.resyncs()), rounds/2*2+2, "a resync for each two of the other's, and one that is under way")

	// What comes after all that shows that the third one did not just lag behind.
	last := d.update(t, "resynced-000", "someone")
	never.awaitVersion(t, ns+"/resynced-000", last.ResourceVersion)
	require.Empty(t, never.resyncs(), "it has not asked")
	require.Len(t, never.seen(), 3)
	keys := map[string]int{}
	for _, n := range first.resyncs() {
		keys[n.key]++
		require.Equal(t, resourceVersionOf(n.old), n.resourceVersion())
	}
	require.Len(t, keys, 2, "a resync is of all objects")
	w.requireEqual(t, informer.GetStore(), ns)
}

func testRemove(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	informer := via.informer(t, w, ns, 0, nil)
	removed, registration := observe(t, informer)
	stays, _ := observe(t, informer)
	run(t, informer)
	d.create(t, "one")
	w.requireTold(t, removed, ns)

	require.NoError(t, cache.ShutDownEventHandler(informer, registration))
	known := len(removed.seen())
	d.update(t, "one", "someone")
	d.create(t, "two")
	w.requireTold(t, stays, ns)
	require.Len(t, removed.seen(), known, "it was told something after its removal")
	require.NoError(t, informer.RemoveEventHandler(registration), "a second time")

	// What is removed can be added anew, and begins from the beginning.
	register(t, informer, removed)
	w.requireTold(t, removed, ns)
	require.Len(t, removed.seen(), known+2)
	w.requireEqual(t, informer.GetStore(), ns)
}
