// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// change is a cache.Delta as tests compare it. For a tombstone, which is a
// cache.DeletedFinalStateUnknown, the object is the last one known.
type change struct {
	kind      cache.DeltaType
	object    contents
	tombstone bool
}

func changeOf(t *testing.T, d cache.Delta) change {
	t.Helper()
	if gone, ok := d.Object.(cache.DeletedFinalStateUnknown); ok {
		object := look(t, gone.Obj)
		require.Equal(t, object.key, gone.Key)
		return change{kind: d.Type, object: object, tombstone: true}
	}
	return change{kind: d.Type, object: look(t, d.Object)}
}

func changesOf(t *testing.T, deltas cache.Deltas) []change {
	t.Helper()
	var out []change
	for _, d := range deltas {
		out = append(out, changeOf(t, d))
	}
	return out
}

func added(t *testing.T, d *fleetv1.Device) change {
	return change{kind: cache.Added, object: look(t, d)}
}
func updated(t *testing.T, d *fleetv1.Device) change {
	return change{kind: cache.Updated, object: look(t, d)}
}
func replaced(t *testing.T, d *fleetv1.Device) change {
	return change{kind: cache.Replaced, object: look(t, d)}
}

// gone is a deletion that was delivered: the last state, with the resourceVersion
// of the deletion.
func gone(t *testing.T, d *fleetv1.Device, resourceVersion string) change {
	t.Helper()
	object := look(t, d)
	object.resourceVersion = resourceVersion
	return change{kind: cache.Deleted, object: object}
}

// missed is a deletion that was not delivered, but found out by listing.
func missed(t *testing.T, d *fleetv1.Device) change {
	return change{kind: cache.Deleted, object: look(t, d), tombstone: true}
}

// pops is a queue under test: filled by a reflector, emptied by the test, when it
// wants to, into a store, as a controller does.
type pops struct {
	*feed
	*cache.Reflector
	queue cache.Queue
	known cache.Store
}

func newPops(t *testing.T, f *feed, queue cache.Queue, known cache.Store) *pops {
	t.Helper()
	return &pops{feed: f, Reflector: f.reflect(t, queue), queue: queue, known: known}
}

// next pops once, and gives what was popped and whether the queue takes it for a
// part of the first list.
func (p *pops) next(t *testing.T) (deltas cache.Deltas, initial bool) {
	t.Helper()
	// A queue that stays empty is closed in the end, and says so.
	defer context.AfterFunc(within(t), p.queue.Close)()
	popped, err := p.queue.Pop(func(obj any, isInInitialList bool) error {
		initial = isInInitialList
		return store(p.known, obj.(cache.Deltas))
	})
	require.NoError(t, err)
	return popped.(cache.Deltas), initial
}

// store applies deltas to a store.
func store(to cache.Store, deltas cache.Deltas) error {
	for _, d := range deltas {
		if err := storeOne(to, d); err != nil {
			return err
		}
	}
	return nil
}

func storeOne(to cache.Store, d cache.Delta) error {
	switch d.Type {
	case cache.Deleted:
		return to.Delete(d.Object)
	case cache.ReplacedAll:
		all := d.Object.(cache.ReplacedAllInfo)
		return to.Replace(all.Objects, all.ResourceVersion)
	case cache.Bookmark:
		to.Bookmark(d.Object.(cache.BookmarkInfo).ResourceVersion)
		return nil
	case cache.SyncAll:
		return nil
	default:
		return to.Update(d.Object)
	}
}

// changes pops once.
func (p *pops) changes(t *testing.T) []change {
	t.Helper()
	deltas, _ := p.next(t)
	return changesOf(t, deltas)
}

// keyed pops n times, and gives the deltas by the object's name.
func (p *pops) keyed(t *testing.T, n int) map[string][]change {
	t.Helper()
	byName := map[string][]change{}
	for range n {
		changes := p.changes(t)
		_, name, err := cache.SplitMetaNamespaceKey(changes[0].object.key)
		require.NoError(t, err)
		require.NotContains(t, byName, name, "popped twice")
		byName[name] = changes
	}
	return byName
}

// requireEmpty closes the queue and wants nothing to be left in it. The popped
// changes add up to the state of etcd.
func (p *pops) requireEmpty(t *testing.T) {
	t.Helper()
	p.queue.Close()
	_, err := p.queue.Pop(func(obj any, _ bool) error {
		assert.Fail(t, fmt.Sprintf("this is left: %v", obj))
		return nil
	})
	require.ErrorIs(t, err, cache.ErrFIFOClosed)
	p.fixture.requireEqual(t, p.known, p.namespace)
}

// eventuallySynced waits for the first list, if another goroutine pops it or it is empty.
func eventuallySynced(t *testing.T, synced interface{ HasSynced() bool }) {
	t.Helper()
	eventually(t, "HasSynced", func(context.Context) error { return errIf(!synced.HasSynced(), "false") })
}

// TestRealFIFO holds what a consumer of a queue is told, one change at a time.
func TestRealFIFO(t *testing.T) {
	eachClause(t, []clause{
		{"every change is popped by itself, in the order of all changes", realOrder(newRealPops)},
		{"the same of atomic events, after one ReplacedAll", realOrder(func(t *testing.T, f *feed) *pops {
			p := newAtomicPops(t, f)
			requireReplacedAll(t, p, f)
			return p
		})},
		{"relist: first a tombstone for what is not there, then Replaced for what is", realRelist},
		{"bookmarks are deltas, in the order of resourceVersions", atomicBookmarks},
	})
}

// newRealPops is newPops for a RealFIFO that knows its consumer's store.
func newRealPops(t *testing.T, f *feed) *pops {
	t.Helper()
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: known}), known)
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
	kept, lost, recreated := f.create(t, "kept"), f.create(t, "lost"), f.create(t, "recreated")
	p := newRealPops(t, f)
	reach(t, p, recreated)
	p.sequence(t, 3)

	var late *fleetv1.Device
	brief := f.create(t, "brief") // queued and not popped when it is lost
	reach(t, p, brief)
	f.relist(t, p, func() {
		f.delete(t, "lost")
		f.delete(t, "brief")
		f.delete(t, "recreated")
		recreated, late = f.create(t, "recreated"), f.create(t, "late")
	})
	require.Equal(t, []change{added(t, brief), missed(t, brief), missed(t, lost)}, p.sequence(t, 3))
	require.Equal(t, map[string][]change{
		"kept": {replaced(t, kept)}, "recreated": {replaced(t, recreated)}, "late": {replaced(t, late)},
	}, p.keyed(t, 3))
	p.requireEmpty(t)
}

// newAtomicPops is newPops for a RealFIFO as informers have used it since v0.36,
// but without the deltas for bookmarks, which come when they like.
func newAtomicPops(t *testing.T, f *feed) *pops {
	t.Helper()
	return newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true}),
		cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc))
}

// requireReplacedAll pops once: it must be a list of exactly these devices, at a
// resourceVersion between theirs and the one that is reached.
func requireReplacedAll(t *testing.T, p *pops, f *feed, want ...*fleetv1.Device) (initial bool) {
	t.Helper()
	deltas, initial := p.next(t)
	require.Len(t, deltas, 1)
	require.Equal(t, cache.ReplacedAll, deltas[0].Type)
	info := deltas[0].Object.(cache.ReplacedAllInfo)
	got, expected := map[string]contents{}, map[string]contents{}
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

// atomicBookmarks: on a resource where nothing happens, the server's bookmarks
// take the store's resourceVersion along.
func atomicBookmarks(t *testing.T, f *feed) {
	x := f.create(t, "x")
	p := newPops(t, f, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true, EmitDeltaTypeBookmark: true}),
		cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc))
	requireReplacedAll(t, p, f, x)
	x = f.update(t, "x", "two")
	elsewhere := f.fixture.writer(t, f.fixture.newNamespace(t)).create(t, "elsewhere")
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
	f.fixture.requireEqual(t, p.known, f.namespace)
}
