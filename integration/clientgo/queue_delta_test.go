// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// newDeltaPops is newPops for a DeltaFIFO as informers use it.
func newDeltaPops(t *testing.T, f *feed) *pops {
	t.Helper()
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return newPops(t, f, cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{KnownObjects: known, EmitDeltaTypeReplaced: true}), known)
}

func TestDeltaFIFO(t *testing.T) {
	promises(t, []clause{
		{"the deltas of an object are its changes in order", deltaOrder},
		{"relist: Replaced for what is there, a tombstone for what is not", deltaRelist},
		{"a deletion is reported once", deltaDeduplicates},
		{"without known objects the deletion of what was popped is left out", deltaWithoutKnown},
		{"without EmitDeltaTypeReplaced a relist is Sync", deltaSync},
		{"Resync: Sync for what has nothing queued", deltaResync},
		{"HasSynced after the first batch was popped", deltaHasSynced},
		{"HasSynced at once if there is nothing", queueHasSyncedEmpty(newDeltaPops)},
		{"KeyOf objects, deltas and tombstones", deltaKeyOf},
		{"Pop gives what is left and ends when closed", queueClose(newDeltaPops)},
		{"the transformer sees all but tombstones", queueTransforms(func(known cache.Store, transform cache.TransformFunc) cache.Queue {
			return cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{KnownObjects: known, EmitDeltaTypeReplaced: true, Transformer: transform})
		})},
	})
}

func deltaOrder(t *testing.T, f *feed) {
	a1 := f.create(t, "a")
	p := newDeltaPops(t, f)
	reach(t, p, a1)
	require.Equal(t, []change{replaced(t, a1)}, p.changes(t))

	b1, b2, b3 := f.create(t, "b"), f.update(t, "b", "two"), f.update(t, "b", "three")
	a2 := f.update(t, "a", "two")
	f.delete(t, "b")
	b4 := f.create(t, "b")
	reach(t, p, b4)
	require.Equal(t, []change{
		added(t, b1), updated(t, b2), updated(t, b3), gone(t, b3, f.deleted(t, b3)), added(t, b4),
	}, p.changes(t))
	require.Equal(t, []change{updated(t, a2)}, p.changes(t))
	p.requireEmpty(t)
}

func deltaRelist(t *testing.T, f *feed) {
	kept, changed, lost, anew := f.create(t, "kept"), f.create(t, "changed"), f.create(t, "lost"), f.create(t, "anew")
	p := newDeltaPops(t, f)
	reach(t, p, anew)
	p.keyed(t, 4)

	var late *fleetv1.Device
	f.relist(t, p, func() {
		changed = f.update(t, "changed", "two")
		f.delete(t, "lost")
		f.delete(t, "anew")
		anew, late = f.create(t, "anew"), f.create(t, "late")
	})
	require.Equal(t, map[string][]change{
		"kept": {replaced(t, kept)}, "changed": {replaced(t, changed)}, "anew": {replaced(t, anew)},
		"late": {replaced(t, late)}, "lost": {missed(t, lost)},
	}, p.keyed(t, 5))
	p.requireEmpty(t)
}

func deltaDeduplicates(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	p := newDeltaPops(t, f)
	reach(t, p, y)
	p.keyed(t, 2)

	f.relist(t, p, func() { f.delete(t, "x") })
	f.relist(t, p, func() {}) // finds out about x again
	f.delete(t, "y")
	marker := f.create(t, "marker")
	reach(t, p, marker)
	f.relist(t, p, func() {}) // finds out about y, of which more is known
	require.Equal(t, map[string][]change{
		"x": {missed(t, x)}, "y": {replaced(t, y), replaced(t, y), gone(t, y, f.deleted(t, y))},
		"marker": {added(t, marker), replaced(t, marker)},
	}, p.keyed(t, 3))
	p.requireEmpty(t)
}

func deltaWithoutKnown(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	p := newPops(t, f, cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{EmitDeltaTypeReplaced: true}),
		cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc))
	reach(t, p, y)
	p.keyed(t, 2)

	f.delete(t, "x")
	y2 := f.update(t, "y", "two")
	f.delete(t, "y")
	marker := f.create(t, "marker")
	reach(t, p, marker)
	require.Equal(t, map[string][]change{
		"y": {updated(t, y2), gone(t, y2, f.deleted(t, y2))}, "marker": {added(t, marker)},
	}, p.keyed(t, 2), "the deletion of x")
	// Nobody was told of it.
	require.NoError(t, p.known.Delete(f.own(t, x)))
	p.requireEmpty(t)
}

func deltaSync(t *testing.T, f *feed) {
	x := f.create(t, "x")
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	p := newPops(t, f, cache.NewDeltaFIFO(cache.MetaNamespaceKeyFunc, known), known)
	reach(t, p, x)
	require.Equal(t, []change{synced(t, x)}, p.changes(t))
	f.relist(t, p, func() { x = f.update(t, "x", "two") })
	require.Equal(t, []change{synced(t, x)}, p.changes(t))
	p.requireEmpty(t)
}

func deltaResync(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	p := newDeltaPops(t, f)
	reach(t, p, y)
	p.keyed(t, 2)

	y2 := f.update(t, "y", "two")
	reach(t, p, y2)
	require.NoError(t, p.queue.Resync())
	require.Equal(t, map[string][]change{"x": {synced(t, x)}, "y": {updated(t, y2)}}, p.keyed(t, 2))
	p.requireEmpty(t)
}

func deltaHasSynced(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	p := newDeltaPops(t, f)
	require.False(t, p.queue.HasSynced())
	awaitList(t, p)
	reach(t, p, f.create(t, "late"))
	for range 3 {
		require.False(t, p.queue.HasSynced())
		requireOpen(t, p.queue.HasSyncedChecker().Done())
		_, initial := p.next(t)
		require.True(t, initial)
	}
	require.True(t, p.queue.HasSynced(), "what came after the list is no part of it")
	requireClosed(t, p.queue.HasSyncedChecker().Done())
	_, initial := p.next(t)
	require.False(t, initial)
	p.requireEmpty(t)
}

func deltaKeyOf(t *testing.T, f *feed) {
	x := f.create(t, "x")
	p := newDeltaPops(t, f)
	queue := p.queue.(*cache.DeltaFIFO)
	reach(t, p, x)
	listed, _ := p.next(t)
	f.relist(t, p, func() { f.delete(t, "x") })
	tombstones, _ := p.next(t)
	for _, obj := range []any{listed, listed[0].Object, tombstones, tombstones[0].Object, cache.ExplicitKey(f.key("x"))} {
		key, err := queue.KeyOf(obj)
		require.NoError(t, err)
		require.Equal(t, f.key("x"), key)
	}
	_, err := queue.KeyOf(cache.Deltas{})
	require.ErrorIs(t, err, cache.ErrZeroLengthDeltasObject)
	_, err = queue.KeyOf("not an object")
	require.Error(t, err)
	p.requireEmpty(t)
}
