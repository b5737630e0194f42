// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// newRealPops is newPops for a RealFIFO that knows its consumer's store.
func newRealPops(t *testing.T, f *feed) *pops {
	t.Helper()
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: known}), known)
}

func TestRealFIFO(t *testing.T) {
	promises(t, []clause{
		{"every change is popped by itself, in the order of all changes", realOrder(newRealPops)},
		{"relist: first a tombstone for what is not there, then Replaced for what is", realRelist},
		{"a tombstone is not repeated", realDeduplicates},
		{"Resync: Sync for what has nothing queued", realResync},
		{"HasSynced after the first batch was popped", realHasSynced},
		{"HasSynced at once if there is nothing", queueHasSyncedEmpty(newRealPops)},
		{"PopBatch: in order, no object twice in a batch", realBatches(newRealPops)},
		{"PopBatch: the first list is a batch of its own", realFirstBatch},
		{"Pop gives what is left and ends when closed", queueClose(newRealPops)},
		{"the transformer sees all but tombstones", queueTransforms(func(known cache.Store, transform cache.TransformFunc) cache.Queue {
			return cache.NewRealFIFO(cache.MetaNamespaceKeyFunc, known, transform)
		})},
	})
}

// sequence pops n times, and wants one delta each time.
func (p *pops) sequence(t *testing.T, n int) []change {
	t.Helper()
	var out []change
	for range n {
		changes := p.changes(t)
		require.Len(t, changes, 1)
		out = append(out, changes[0])
	}
	return out
}

func realOrder(open func(*testing.T, *feed) *pops) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		p := open(t, f)
		eventuallySynced(t, p.queue)
		a1, b1, b2 := f.create(t, "a"), f.create(t, "b"), f.update(t, "b", "two")
		a2, b3 := f.update(t, "a", "two"), f.update(t, "b", "three")
		f.delete(t, "b")
		b4, a3 := f.create(t, "b"), f.update(t, "a", "three")
		reach(t, p, a3)
		require.Equal(t, []change{
			added(t, a1), added(t, b1), updated(t, b2), updated(t, a2), updated(t, b3),
			gone(t, b3, f.deleted(t, b3)), added(t, b4), updated(t, a3),
		}, p.sequence(t, 8))
		p.requireEmpty(t)
	}
}

func realRelist(t *testing.T, f *feed) {
	kept, lost, anew := f.create(t, "kept"), f.create(t, "lost"), f.create(t, "anew")
	p := newRealPops(t, f)
	reach(t, p, anew)
	p.sequence(t, 3)

	var late *fleetv1.Device
	brief := f.create(t, "brief") // queued and not popped when it is lost
	reach(t, p, brief)
	f.relist(t, p, func() {
		f.delete(t, "lost")
		f.delete(t, "brief")
		f.delete(t, "anew")
		anew, late = f.create(t, "anew"), f.create(t, "late")
	})
	require.Equal(t, []change{added(t, brief), missed(t, brief), missed(t, lost)}, p.sequence(t, 3))
	require.Equal(t, map[string][]change{
		"kept": {replaced(t, kept)}, "anew": {replaced(t, anew)}, "late": {replaced(t, late)},
	}, p.keyed(t, 3))
	p.requireEmpty(t)
}

func realDeduplicates(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	p := newRealPops(t, f)
	reach(t, p, y)
	p.sequence(t, 2)
	f.relist(t, p, func() { f.delete(t, "x") })
	f.delete(t, "y")
	reach(t, p, f.create(t, "marker"))
	f.relist(t, p, func() { f.delete(t, "marker") })
	changes := p.sequence(t, 5)
	require.Equal(t, []change{missed(t, x), replaced(t, y), gone(t, y, f.deleted(t, y))}, changes[:3])
	require.Equal(t, cache.Added, changes[3].kind, "the marker")
	require.Equal(t, cache.Deleted, changes[4].kind, "the marker, and neither x nor y again")
	p.requireEmpty(t)
}

func realResync(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	p := newRealPops(t, f)
	reach(t, p, y)
	p.sequence(t, 2)
	y2 := f.update(t, "y", "two")
	reach(t, p, y2)
	require.NoError(t, p.queue.Resync())
	require.Equal(t, []change{updated(t, y2), synced(t, x)}, p.sequence(t, 2))
	p.requireEmpty(t)
}

func realHasSynced(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	p := newRealPops(t, f)
	awaitList(t, p)
	reach(t, p, f.create(t, "late"))
	for i := range 3 {
		require.False(t, p.queue.HasSynced())
		requireOpen(t, p.queue.HasSyncedChecker().Done())
		_, initial := p.next(t)
		require.True(t, initial, i)
	}
	require.True(t, p.queue.HasSynced(), "what came after the list is no part of it")
	requireClosed(t, p.queue.HasSyncedChecker().Done())
	_, initial := p.next(t)
	require.False(t, initial)
	p.requireEmpty(t)
}

// batch pops a batch, or what can't be in one with others.
func (p *pops) batch(t *testing.T) (changes []change, initial bool) {
	t.Helper()
	process := func(deltas []cache.Delta, isInInitialList bool) error {
		changes, initial = changesOf(t, deltas), isInInitialList
		return store(p.known, deltas)
	}
	require.NoError(t, p.queue.(cache.QueueWithBatch).PopBatch(func(deltas []cache.Delta, isInInitialList bool) error {
		require.Greater(t, len(deltas), 1, "a batch")
		return process(deltas, isInInitialList)
	}, func(obj any, isInInitialList bool) error {
		require.Len(t, obj, 1, "not a batch")
		return process(obj.(cache.Deltas), isInInitialList)
	}))
	return changes, initial
}

func realBatches(open func(*testing.T, *feed) *pops) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		p := open(t, f)
		eventuallySynced(t, p.queue)
		a1, b1, a2, c1 := f.create(t, "a"), f.create(t, "b"), f.update(t, "a", "two"), f.create(t, "c")
		f.delete(t, "b")
		c2 := f.update(t, "c", "two")
		reach(t, p, c2)
		for _, want := range [][]change{
			{added(t, a1), added(t, b1)},
			{updated(t, a2), added(t, c1), gone(t, b1, f.deleted(t, b1))},
			{updated(t, c2)},
		} {
			changes, initial := p.batch(t)
			require.Equal(t, want, changes)
			require.False(t, initial)
		}
		p.requireEmpty(t)
	}
}

func realFirstBatch(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	p := newRealPops(t, f)
	awaitList(t, p)
	late := f.create(t, "late")
	reach(t, p, late)
	changes, initial := p.batch(t)
	require.Len(t, changes, 3)
	require.True(t, initial)
	require.True(t, p.queue.HasSynced())
	changes, initial = p.batch(t)
	require.Equal(t, []change{added(t, late)}, changes)
	require.False(t, initial)
	p.requireEmpty(t)
}
