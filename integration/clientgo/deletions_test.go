// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// TestDeletions holds what cache.SharedInformer promises about objects that go, and
// come again.
func TestDeletions(t *testing.T) {
	t.Run("carry the last state with the deletion's resourceVersion", func(t *testing.T) { bothTransports(t, testDeletion) })
	t.Run("are told after a resume as if nothing had been", func(t *testing.T) { bothTransports(t, testDeletionResumed) })
	t.Run("missed over a relist are DeletedFinalStateUnknown", func(t *testing.T) { bothTransportsAtOnce(t, testMissedDeletion) })
	t.Run("and recreation between two looks are an update with another UID", func(t *testing.T) { bothTransportsAtOnce(t, testRecreation) })
	t.Run("and recreation before its eyes are both told", func(t *testing.T) { bothTransports(t, testRecreationSeen) })
}

// deletion gives an object's last states before and at its deletion.
func deletion(t *testing.T, states []state) (last, gone state) {
	t.Helper()
	require.GreaterOrEqual(t, len(states), 2)
	last, gone = states[len(states)-2], states[len(states)-1]
	require.True(t, gone.absent)
	require.False(t, last.absent)
	return last, gone
}

func testDeletion(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	start := fx.revision(t)
	d := fx.writer(t, ns)
	informer := via.informer(t, fx, ns, 0, nil)
	o, _ := observe(t, informer)
	run(t, informer)
	d.create(t, "one")
	d.update(t, "one", "the-last")
	fx.requireTold(t, o, ns)
	d.create(t, "other") // so that the deletion is not the next revision
	d.delete(t, "one")
	n := o.awaitDeleted(t, ns+"/one")
	requireDeletion(t, via, fx.history(t, ns, start)[ns+"/one"], n)
}

// requireDeletion wants the notification to have the state before the deletion, byte
// for byte, and the deletion's own resourceVersion.
func requireDeletion(t *testing.T, via transport, states []state, n notification) {
	t.Helper()
	last, gone := deletion(t, states)
	require.Equal(t, strconv.FormatInt(gone.revision, 10), n.resourceVersion())
	require.Equal(t, string(last.value), string(via.encode(t, n.object.(runtime.Object))))
}

// follow runs an informer of the namespace, and returns when it is in sync.
func follow(t *testing.T, fx *fixture, via transport, namespace string) (cache.SharedIndexInformer, *recorder, *observer) {
	t.Helper()
	informer, r := recorded(t, fx, via, namespace)
	o, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	return informer, r, o
}

func testDeletionResumed(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	start := fx.revision(t)
	d := fx.writer(t, ns)
	_, r, o := follow(t, fx, via, ns)
	d.create(t, "one")
	fx.requireTold(t, o, ns)

	reconnect := via.disconnect(t, fx, r)
	d.update(t, "one", "the-last")
	d.delete(t, "one")
	reconnect()
	n := o.awaitDeleted(t, ns+"/one")
	requireDeletion(t, via, fx.history(t, ns, start)[ns+"/one"], n)
	require.Len(t, o.seen(), 3, "the update is told as well")
	require.Len(t, r.lists(), 1)
}

// relistAround lets an informer whose watch has brought something miss what happens
// in absence, and then list again.
func relistAround(t *testing.T, fx *fixture, r *recorder, informer cache.SharedInformer, absence func()) {
	t.Helper()
	known, lists := informer.LastSyncResourceVersion(), len(r.lists())
	r.hold()
	absence()
	fx.flushWindow(t, known)
	require.NotZero(t, r.drop())
	r.release()
	requireRelisted(t, r, lists)
}

func testMissedDeletion(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	informer, r, o := follow(t, fx, via, ns)
	d.create(t, "gone")
	d.create(t, "stays")
	fx.requireTold(t, o, ns)
	known := o.of(ns + "/gone")[0]

	relistAround(t, fx, r, informer, func() {
		d.update(t, "gone", "never-seen")
		d.delete(t, "gone")
	})
	n := o.awaitDeleted(t, ns+"/gone")
	tombstone, ok := n.object.(cache.DeletedFinalStateUnknown)
	require.True(t, ok, "the handler got a %T", n.object)
	require.Equal(t, ns+"/gone", tombstone.Key)
	require.Same(t, known.object, tombstone.Obj, "the last state that was known")
	require.Len(t, o.of(ns+"/gone"), 2)
	for _, n := range o.of(ns + "/stays")[1:] {
		require.True(t, n.resync(), "it did not change: %v", summary(o.seen()))
	}
	fx.requireEqual(t, informer.GetStore(), ns)
}

func testRecreation(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	start := fx.revision(t)
	d := fx.writer(t, ns)
	informer, r, o := follow(t, fx, via, ns)
	first := d.create(t, "again")
	fx.requireTold(t, o, ns)

	relistAround(t, fx, r, informer, func() {
		d.delete(t, "again")
		d.create(t, "again")
	})
	fx.requireTold(t, o, ns)
	told := o.of(ns + "/again")
	require.Len(t, told, 2, "%v", summary(told))
	require.Equal(t, toldUpdate, told[1].kind)
	require.Equal(t, first.UID, mustInternal(t, told[1].old).UID)
	require.NotEqual(t, first.UID, mustInternal(t, told[1].object).UID)
	requireSubsequence(t, fx.history(t, ns, start), o.seen())
	fx.requireEqual(t, informer.GetStore(), ns)
}

func testRecreationSeen(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	informer := via.informer(t, fx, ns, 0, nil)
	o, _ := observe(t, informer)
	run(t, informer)
	awaitSync(t, informer.HasSyncedChecker())
	first := d.create(t, "again")
	d.delete(t, "again")
	second := d.create(t, "again")
	fx.requireTold(t, o, ns)
	told := o.of(ns + "/again")
	require.Len(t, told, 3, "%v", summary(told))
	require.Equal(t, toldDelete, told[1].kind)
	require.Equal(t, first.UID, mustInternal(t, told[1].object).UID)
	require.Equal(t, second.UID, mustInternal(t, told[2].object).UID)
}
