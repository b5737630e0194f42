// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// TestDeletions holds what cache.SharedInformer promises about objects that go.
func TestDeletions(t *testing.T) {
	fx := newFixture(t)
	t.Run("are told after a resume as if nothing had been", func(t *testing.T) { bothTransports(t, fx, testDeletionResumed) })
	t.Run("missed over a relist are DeletedFinalStateUnknown", func(t *testing.T) { bothTransports(t, fx, testMissedDeletion) })
}

// requireDeletion wants the notification to have the state before the deletion, byte
// for byte, and the deletion's own resourceVersion.
func requireDeletion(t *testing.T, states []state, n notification) {
	t.Helper()
	require.GreaterOrEqual(t, len(states), 2)
	last, gone := states[len(states)-2], states[len(states)-1]
	require.True(t, gone.absent)
	require.Equal(t, strconv.FormatInt(gone.revision, 10), n.resourceVersion())
	got, err := encode(n.object.(runtime.Object))
	require.NoError(t, err)
	require.Equal(t, string(last.value), string(got))
}

// follow runs an informer of the namespace, and returns when it is in sync.
func follow(t *testing.T, fx *fixture, via transport, namespace string) (cache.SharedIndexInformer, *recorder, *observer) {
	t.Helper()
	informer, r := recorded(t, fx, via, namespace)
	o, _ := observe(t, informer)
	runs(t, informer.RunWithContext)
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
	requireDeletion(t, fx.history(t, ns, start)[ns+"/one"], n)
	require.Len(t, o.seen(), 3, "the update is told as well")
	require.Len(t, r.lists(), 1)
}

func testMissedDeletion(t *testing.T, fx *fixture, via transport) {
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	informer, r, o := follow(t, fx, via, ns)
	d.create(t, "gone")
	d.create(t, "stays")
	fx.requireTold(t, o, ns)
	known, lists := o.of(ns + "/gone")[0], len(r.lists())

	r.hold()
	d.update(t, "gone", "never-seen")
	d.delete(t, "gone")
	fx.flushWindow(t, informer.LastSyncResourceVersion())
	require.NotZero(t, r.drop())
	r.release()
	requireRelisted(t, r, lists)

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
