// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// change is a cache.Delta as tests compare it. For a tombstone, which is a
// cache.DeletedFinalStateUnknown, the object is the last one known.
type change struct {
	kind      cache.DeltaType
	object    seen
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
func synced(t *testing.T, d *fleetv1.Device) change {
	return change{kind: cache.Sync, object: look(t, d)}
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

// requireEmpty closes the queue and wants nothing to be left in it. What was
// popped makes up what etcd has.
func (p *pops) requireEmpty(t *testing.T) {
	t.Helper()
	p.queue.Close()
	_, err := p.queue.Pop(func(obj any, _ bool) error {
		t.Errorf("this is left: %v", obj)
		return nil
	})
	require.ErrorIs(t, err, cache.ErrFIFOClosed)
	p.world.requireEqual(t, p.known, p.namespace)
}

// eventuallySynced waits for the first list, if it is popped by somebody or empty.
func eventuallySynced(t *testing.T, synced interface{ HasSynced() bool }) {
	t.Helper()
	eventually(t, "HasSynced", func(context.Context) error { return errIf(!synced.HasSynced(), "false") })
}

// queueHasSyncedEmpty: an empty list is a batch that was popped.
func queueHasSyncedEmpty(open func(*testing.T, *feed) *pops) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		p := open(t, f)
		eventuallySynced(t, p.queue)
		requireClosed(t, p.queue.HasSyncedChecker().Done())
		late := f.create(t, "late")
		deltas, initial := p.next(t)
		require.Equal(t, []change{added(t, late)}, changesOf(t, deltas))
		require.False(t, initial)
		p.requireEmpty(t)
	}
}

// queueClose: Close ends a Pop that waits, and one that comes when all is popped.
func queueClose(open func(*testing.T, *feed) *pops) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		x := f.create(t, "x")
		p := open(t, f)
		reach(t, p, x)
		p.queue.Close()
		require.Equal(t, []change{replaced(t, x)}, p.changes(t), "closing takes nothing away")
		_, err := p.queue.Pop(unexpected(t))
		require.ErrorIs(t, err, cache.ErrFIFOClosed)

		p = open(t, f)
		p.changes(t)
		waiting := make(chan error, 1)
		go func() {
			_, err := p.queue.Pop(unexpected(t))
			waiting <- err
		}()
		p.queue.Close()
		select {
		case err := <-waiting:
			require.ErrorIs(t, err, cache.ErrFIFOClosed)
		case <-within(t).Done():
			t.Fatal("Pop does not end")
		}
	}
}

// unexpected is for a Pop that finds nothing.
func unexpected(t *testing.T) cache.PopProcessFunc {
	return func(obj any, _ bool) error {
		t.Errorf("%v was popped", obj)
		return nil
	}
}

// queueTransforms: every object is transformed before it is popped. The object of
// a tombstone is the one that is known, which has been.
func queueTransforms(open func(cache.Store, cache.TransformFunc) cache.Queue) func(*testing.T, *feed) {
	return func(t *testing.T, f *feed) {
		const mark = "transformed"
		known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
		p := newPops(t, f, open(known, func(obj any) (any, error) {
			accessor, err := meta.Accessor(obj)
			if err != nil {
				return nil, err
			}
			accessor.SetAnnotations(map[string]string{mark: accessor.GetResourceVersion()})
			return obj, nil
		}), known)
		requireTransformed := func(until *fleetv1.Device) {
			reach(t, p, until)
			for resourceVersion := ""; resourceVersion != until.ResourceVersion; {
				deltas, _ := p.next(t)
				for _, d := range deltas {
					accessor, err := meta.Accessor(d.Object)
					require.NoError(t, err)
					resourceVersion = accessor.GetResourceVersion()
					require.Equal(t, map[string]string{mark: resourceVersion}, accessor.GetAnnotations(), d.Type)
				}
			}
		}
		requireTransformed(f.create(t, "x"))
		f.update(t, "x", "two")
		f.create(t, "y")
		f.delete(t, "y")
		requireTransformed(f.create(t, "marker"))

		x, _, err := known.GetByKey(f.key("x"))
		require.NoError(t, err)
		f.relist(t, p, func() { f.delete(t, "x") })
		for {
			deltas, _ := p.next(t)
			if lost, ok := deltas[0].Object.(cache.DeletedFinalStateUnknown); ok {
				require.Same(t, x, lost.Obj)
				return
			}
		}
	}
}
