// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEventHandlers holds what cache.SharedInformer promises its handlers. That a
// handler is called one at a time is checked for every observer of every test.
func TestEventHandlers(t *testing.T) {
	t.Run("are told every change in order", func(t *testing.T) { bothTransports(t, testOrder) })
	t.Run("have a HasSynced each", func(t *testing.T) { bothTransports(t, testHasSynced) })
}

// testOrder: with nothing in between, a handler is told each single state.
func testOrder(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	start := fx.revision(t)
	informer := via.informer(t, fx, ns, 0, nil)
	o, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	d := fx.writer(t, ns)
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
	history := fx.history(t, ns, start)
	requireSubsequence(t, history, o.seen())
	require.Len(t, o.seen(), len(history[ns+"/one"])+len(history[ns+"/two"]))
	// The old state of an update was the new one of the call before.
	for _, name := range []string{"one", "two"} {
		told := o.of(ns + "/" + name)
		for i, n := range told[:len(told)-1] {
			if i > 0 {
				require.Equal(t, told[i-1].resourceVersion(), resourceVersionOf(n.old))
			}
		}
	}
}

// testHasSynced: a handler is in sync when it was told the initial objects, each as
// such, and no other.
func testHasSynced(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.createMany(t, "early", 3)
	informer := via.informer(t, fx, ns, 0, nil)
	early, earlySync := observe(t, informer)
	require.False(t, earlySync.HasSynced(), "nothing runs yet")
	run(t, informer)
	awaitSync(t, earlySync.HasSyncedChecker())
	late, lateSync := observe(t, informer)
	awaitSync(t, lateSync.HasSyncedChecker())
	for _, o := range []*observer{early, late} {
		require.Len(t, o.seen(), 3, "synced means that the initial objects were handled")
		for _, n := range o.seen() {
			require.True(t, n.initial)
		}
	}
	d.create(t, "another")
	for _, o := range []*observer{early, late} {
		fx.requireTold(t, o, ns)
		require.Len(t, o.seen(), 4)
		require.False(t, o.seen()[3].initial)
	}
	// Without anything to list, a handler is in sync as well.
	empty := via.informer(t, fx, fx.newNamespace(t), 0, nil)
	_, emptySync := observe(t, empty)
	run(t, empty)
	awaitSync(t, emptySync.HasSyncedChecker())
}
