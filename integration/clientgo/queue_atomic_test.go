// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// newAtomicPops is newPops for a RealFIFO as informers have used it since v0.36,
// but without the deltas for bookmarks, which come when they like.
func newAtomicPops(t *testing.T, f *feed) *pops {
	t.Helper()
	return newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true}),
		cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc))
}

func TestRealFIFOAtomic(t *testing.T) {
	promises(t, []clause{
		{"every change is popped by itself, in the order of all changes", func(t *testing.T, f *feed) {
			realOrder(func(t *testing.T, f *feed) *pops {
				p := newAtomicPops(t, f)
				requireReplacedAll(t, p, f)
				return p
			})(t, f)
		}},
		{"list and relist: one ReplacedAll with everything at one resourceVersion", atomicRelist},
		{"HasSynced after the list was popped", atomicHasSynced},
		{"Resync: one SyncAll", atomicResync},
		{"bookmarks are deltas, in the order of resourceVersions", atomicBookmarks},
		{"changes arrive while one is processed", atomicUnlocked},
		{"PopBatch: a list is never in a batch with changes", atomicBatches},
		{"Pop ends when closed", atomicClose},
	})
}

// requireReplacedAll pops once: it must be a list of exactly these devices, at a
// resourceVersion between theirs and the one that is reached.
func requireReplacedAll(t *testing.T, p *pops, f *feed, want ...*fleetv1.Device) (initial bool) {
	t.Helper()
	deltas, initial := p.next(t)
	require.Len(t, deltas, 1)
	require.Equal(t, cache.ReplacedAll, deltas[0].Type)
	info := deltas[0].Object.(cache.ReplacedAllInfo)
	got, expected := map[string]seen{}, map[string]seen{}
	for _, obj := range info.Objects {
		got[look(t, obj).key] = look(t, obj)
	}
	for _, d := range want {
		expected[f.key(d.Name)] = look(t, d)
		require.GreaterOrEqual(t, number(t, info.ResourceVersion), number(t, d.ResourceVersion))
	}
	require.Equal(t, expected, got)
	require.Len(t, info.Objects, len(want))
	require.Equal(t, info.ResourceVersion, p.known.LastStoreSyncResourceVersion())
	return initial
}

func atomicRelist(t *testing.T, f *feed) {
	kept, lost, anew := f.create(t, "kept"), f.create(t, "lost"), f.create(t, "anew")
	p := newAtomicPops(t, f)
	require.True(t, requireReplacedAll(t, p, f, kept, lost, anew))
	var late *fleetv1.Device
	f.relist(t, p, func() {
		f.delete(t, "lost")
		f.delete(t, "anew")
		anew, late = f.create(t, "anew"), f.create(t, "late")
	})
	require.False(t, requireReplacedAll(t, p, f, kept, anew, late))
	f.relist(t, p, func() {
		for _, name := range []string{"kept", "anew", "late"} {
			f.delete(t, name)
		}
	})
	requireReplacedAll(t, p, f)
	p.requireEmpty(t)
}

func atomicHasSynced(t *testing.T, f *feed) {
	listed := f.createMany(t, "x", 3)
	p := newAtomicPops(t, f)
	awaitList(t, p)
	late := f.create(t, "late")
	reach(t, p, late)
	require.False(t, p.queue.HasSynced())
	requireOpen(t, p.queue.HasSyncedChecker().Done())
	require.True(t, requireReplacedAll(t, p, f, listed...))
	require.True(t, p.queue.HasSynced())
	requireClosed(t, p.queue.HasSyncedChecker().Done())
	deltas, initial := p.next(t)
	require.Equal(t, []change{added(t, late)}, changesOf(t, deltas))
	require.False(t, initial)
	p.requireEmpty(t)
}

func atomicResync(t *testing.T, f *feed) {
	x := f.create(t, "x")
	p := newAtomicPops(t, f)
	requireReplacedAll(t, p, f, x)
	x2 := f.update(t, "x", "two")
	reach(t, p, x2)
	require.NoError(t, p.queue.Resync())
	require.Equal(t, []change{updated(t, x2)}, p.changes(t))
	deltas, _ := p.next(t)
	require.Equal(t, cache.Deltas{{Type: cache.SyncAll, Object: cache.SyncAllInfo{}}}, deltas)
	p.requireEmpty(t)
}

// atomicBookmarks: on a resource where nothing happens, the server's bookmarks
// take the store's resourceVersion along.
func atomicBookmarks(t *testing.T, f *feed) {
	x := f.create(t, "x")
	p := newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true, EmitDeltaTypeBookmark: true}),
		cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc))
	requireReplacedAll(t, p, f, x)
	x = f.update(t, "x", "two")
	elsewhere := f.world.writer(t, f.world.newNamespace(t)).create(t, "elsewhere")
	last := number(t, p.known.LastStoreSyncResourceVersion())
	for last < number(t, elsewhere.ResourceVersion) {
		deltas, _ := p.next(t)
		rv := number(t, p.known.LastStoreSyncResourceVersion())
		if deltas[0].Type == cache.Bookmark {
			require.Equal(t, cache.BookmarkInfo{ResourceVersion: p.known.LastStoreSyncResourceVersion()}, deltas[0].Object)
			require.GreaterOrEqual(t, rv, last)
		} else {
			require.Equal(t, []change{updated(t, x)}, changesOf(t, deltas))
			require.Greater(t, rv, last)
		}
		last = rv
	}
	f.world.requireEqual(t, p.known, f.namespace)
}

// atomicUnlocked: the reflector can go on while the consumer is busy.
func atomicUnlocked(t *testing.T, f *feed) {
	x := f.create(t, "x")
	p := newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true, UnlockWhileProcessing: true}),
		cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc))
	requireReplacedAll(t, p, f, x)
	x2 := f.update(t, "x", "two")
	reach(t, p, x2)
	var x3 *fleetv1.Device
	_, err := p.queue.Pop(func(obj any, _ bool) error {
		x3 = f.update(t, "x", "three")
		reach(t, p, x3)
		return store(p.known, obj.(cache.Deltas))
	})
	require.NoError(t, err)
	require.Equal(t, []change{updated(t, x3)}, p.changes(t))
	p.requireEmpty(t)
}

func atomicBatches(t *testing.T, f *feed) {
	x := f.create(t, "x")
	p := newAtomicPops(t, f)
	awaitList(t, p)
	y, z := f.create(t, "y"), f.create(t, "z")
	reach(t, p, z)
	f.relist(t, p, func() { f.delete(t, "x") })
	requireReplacedAll(t, p, f, x)
	changes, initial := p.batch(t)
	require.Equal(t, []change{added(t, y), added(t, z)}, changes)
	require.False(t, initial)
	requireReplacedAll(t, p, f, y, z)
	p.requireEmpty(t)
}

func atomicClose(t *testing.T, f *feed) {
	p := newAtomicPops(t, f)
	requireReplacedAll(t, p, f)
	waiting := make(chan error, 1)
	go func() { waiting <- p.queue.(cache.QueueWithBatch).PopBatch(nil, unexpected(t)) }()
	p.queue.Close()
	eventually(t, "PopBatch does not end", func(context.Context) error {
		select {
		case err := <-waiting:
			waiting <- err
			return nil
		default:
			return errIf(true, "not yet")
		}
	})
	require.ErrorIs(t, <-waiting, cache.ErrFIFOClosed)
	require.True(t, p.queue.(*cache.RealFIFO).IsClosed())
	p.requireEmpty(t)
}
