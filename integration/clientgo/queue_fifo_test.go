// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// fifo is a cache.FIFO, filled by a reflector, emptied by the test into a store.
// Nothing says of what was popped that it is deleted later: FIFO is for those who
// don't want to know.
type fifo struct {
	*cache.FIFO
	*cache.Reflector
	popped cache.Store
}

func newFIFO(t *testing.T, f *feed) *fifo {
	t.Helper()
	queue := cache.NewFIFO(cache.MetaNamespaceKeyFunc)
	return &fifo{queue, f.reflect(t, queue), cache.NewStore(cache.MetaNamespaceKeyFunc)}
}

// next pops once.
func (q *fifo) next(t *testing.T) (object seen, initial bool) {
	t.Helper()
	defer context.AfterFunc(within(t), q.Close)()
	popped, err := q.Pop(func(obj any, isInInitialList bool) error {
		initial = isInInitialList
		return q.popped.Update(obj)
	})
	require.NoError(t, err)
	return look(t, popped), initial
}

// requireNext pops what must be these, in the order given.
func (q *fifo) requireNext(t *testing.T, want ...*fleetv1.Device) {
	t.Helper()
	for _, d := range want {
		object, _ := q.next(t)
		require.Equal(t, look(t, d), object)
	}
}

// requireEmpty closes the queue and wants nothing to be left.
func (q *fifo) requireEmpty(t *testing.T) {
	t.Helper()
	q.Close()
	require.True(t, q.IsClosed())
	_, err := q.Pop(unexpected(t))
	require.ErrorIs(t, err, cache.ErrFIFOClosed)
}

func TestFIFO(t *testing.T) {
	promises(t, []clause{
		{"an object is popped once, in its newest version, in the order of arrival", fifoNewest},
		{"what is deleted before it is popped is not popped", fifoDeleted},
		{"relist: all that is there, and nothing that is not", fifoRelist},
		{"HasSynced after the first batch was popped", fifoHasSynced},
		{"Pop ends when closed", fifoClose},
	})
}

func fifoNewest(t *testing.T, f *feed) {
	q := newFIFO(t, f)
	eventuallySynced(t, q)
	f.create(t, "a")
	b := f.create(t, "b")
	f.update(t, "a", "two")
	a := f.update(t, "a", "three")
	reach(t, q, a)
	require.NoError(t, q.Resync(), "and adds nothing")
	q.requireNext(t, a, b)
	b = f.update(t, "b", "two")
	q.requireNext(t, b)
	q.requireEmpty(t)
	f.world.requireEqual(t, q.popped, f.namespace)
}

func fifoDeleted(t *testing.T, f *feed) {
	q := newFIFO(t, f)
	eventuallySynced(t, q)
	f.create(t, "gone")
	f.create(t, "anew")
	kept := f.create(t, "kept")
	f.delete(t, "gone")
	f.delete(t, "anew")
	anew := f.create(t, "anew")
	reach(t, q, anew)
	q.requireNext(t, anew, kept)
	q.requireEmpty(t)
	f.world.requireEqual(t, q.popped, f.namespace)
}

func fifoRelist(t *testing.T, f *feed) {
	f.create(t, "gone")
	kept := f.create(t, "kept")
	q := newFIFO(t, f)
	reach(t, q, kept)
	var late *fleetv1.Device
	f.relist(t, q, func() {
		f.delete(t, "gone")
		late = f.create(t, "late")
	})
	got := map[seen]bool{}
	for range 2 {
		object, _ := q.next(t)
		got[object] = true
	}
	require.Equal(t, map[seen]bool{look(t, kept): true, look(t, late): true}, got)
	// A list is news, even for what was popped.
	f.relist(t, q, func() { f.delete(t, "late") })
	q.requireNext(t, kept)
	q.requireEmpty(t)
}

func fifoHasSynced(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	q := newFIFO(t, f)
	awaitList(t, q)
	reach(t, q, f.create(t, "late"))
	for range 3 {
		require.False(t, q.HasSynced())
		requireOpen(t, q.HasSyncedChecker().Done())
		_, initial := q.next(t)
		require.True(t, initial)
	}
	require.True(t, q.HasSynced())
	requireClosed(t, q.HasSyncedChecker().Done())
	_, initial := q.next(t)
	require.False(t, initial)
	q.requireEmpty(t)
	f.world.requireEqual(t, q.popped, f.namespace)
}

func fifoClose(t *testing.T, f *feed) {
	q := newFIFO(t, f)
	eventuallySynced(t, q)
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, err := q.Pop(unexpected(t))
		if err != cache.ErrFIFOClosed {
			t.Errorf("Pop ends with %v", err)
		}
	}()
	q.Close()
	requireClosed(t, waiting)
	q.requireEmpty(t)
}
