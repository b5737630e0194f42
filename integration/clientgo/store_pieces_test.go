// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// piece is one piece of client-go that follows a course.
type piece struct {
	name string
	absent
	// store must be what etcd is at the end of a chapter; nil: the piece has none.
	store cache.Store
	// kept checks what else it promises, at the end of a chapter; may be nil.
	kept func(t *testing.T, c *course)
	// wrote is told the result of each write; may be nil.
	wrote func(*fleetv1.Device)
}

// pieces open one of each. The caller sets source and example.
var pieces = []func(*testing.T, *feed) *piece{
	deltaPiece, realPiece, atomicPiece, fifoPiece, controllerPiece, indexerPiece, threadSafePiece,
	undeltaPiece, ttlPiece, listerPiece, mutationCachePiece, mutationDetectorPiece,
}

func deltaPiece(t *testing.T, f *feed) *piece {
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return queuePiece(t, f, "DeltaFIFO", known, cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{KnownObjects: known, EmitDeltaTypeReplaced: true}))
}

func realPiece(t *testing.T, f *feed) *piece {
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return queuePiece(t, f, "RealFIFO", known, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: known}))
}

func atomicPiece(t *testing.T, f *feed) *piece {
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return queuePiece(t, f, "RealFIFO, atomic", known, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{
		AtomicEvents: true, UnlockWhileProcessing: true, EmitDeltaTypeBookmark: true,
	}))
}

// consumer pops a queue into a store, and notes what was popped as a handler would
// be told.
type consumer struct {
	known cache.Store
	mu    struct {
		sync.Mutex
		told  []notification
		wrong error
	}
}

// queuePiece: of each object, what is popped is a subsequence of its states.
func queuePiece(t *testing.T, f *feed, name string, known cache.Store, queue cache.Queue) *piece {
	t.Helper()
	c := &consumer{known: known}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err := error(nil); !errors.Is(err, cache.ErrFIFOClosed); {
			_, err = queue.Pop(c.process)
		}
	}()
	t.Cleanup(func() {
		queue.Close()
		<-ended
	})
	return &piece{name: name, store: known, absent: absent{follower: f.reflect(t, queue)}, kept: func(t *testing.T, course *course) {
		require.True(t, queue.HasSynced())
		c.mu.Lock()
		defer c.mu.Unlock()
		require.NoError(t, c.mu.wrong)
		requireSubsequence(t, course.past, c.mu.told)
	}}
}

// process is a cache.PopProcessFunc.
func (c *consumer) process(obj any, _ bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range obj.(cache.Deltas) {
		switch d.Type {
		case cache.Bookmark:
		case cache.ReplacedAll:
			c.noteAllLocked(d.Object.(cache.ReplacedAllInfo).Objects)
		case cache.Deleted:
			c.noteLocked(toldDelete, d.Object)
		default:
			c.noteLocked(toldUpdate, d.Object)
		}
		if err := storeOne(c.known, d); err != nil {
			c.mu.wrong = errors.Join(c.mu.wrong, err)
		}
	}
	return nil
}

func (c *consumer) noteLocked(kind kind, obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	old, exists, getErr := c.known.GetByKey(key)
	c.mu.wrong = errors.Join(c.mu.wrong, err, getErr)
	if kind == toldDelete && !exists {
		c.mu.wrong = errors.Join(c.mu.wrong, fmt.Errorf("%s is deleted and was not there", key))
	}
	c.mu.told = append(c.mu.told, notification{kind: kind, key: key, object: obj, old: old})
}

// noteAllLocked notes what a list of everything says: what is missing is deleted.
func (c *consumer) noteAllLocked(objects []any) {
	there := map[string]bool{}
	for _, obj := range objects {
		c.noteLocked(toldUpdate, obj)
		there[c.mu.told[len(c.mu.told)-1].key] = true
	}
	for _, key := range c.known.ListKeys() {
		if !there[key] {
			c.noteLocked(toldDelete, cache.DeletedFinalStateUnknown{Key: key})
		}
	}
}

// fifoPiece: of each object that is there the newest version was popped.
func fifoPiece(t *testing.T, f *feed) *piece {
	queue, popped := cache.NewFIFO(cache.MetaNamespaceKeyFunc), cache.NewStore(cache.MetaNamespaceKeyFunc)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err := error(nil); !errors.Is(err, cache.ErrFIFOClosed); {
			_, err = queue.Pop(func(obj any, _ bool) error { return popped.Update(obj) })
		}
	}()
	t.Cleanup(func() {
		queue.Close()
		<-ended
	})
	return &piece{name: "FIFO", absent: absent{follower: f.reflect(t, queue)}, kept: func(t *testing.T, c *course) {
		records := c.world.stored(t, c.namespace)
		require.NotEmpty(t, records)
		eventually(t, "what was popped is not what etcd has", func(context.Context) error {
			for key, record := range records {
				obj, exists, err := popped.GetByKey(key)
				if err != nil || !exists {
					return fmt.Errorf("%s was not popped (error: %w)", key, err)
				}
				if err := same(obj.(runtime.Object), record); err != nil {
					return err
				}
			}
			return nil
		})
	}}
}

// controllerPiece: its store is ahead of its handler, and stays in sync.
func controllerPiece(t *testing.T, f *feed) *piece {
	var stored cache.Store
	handler := newAttentive(func() cache.Store { return stored })
	var c cache.Controller
	stored, c = cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: f.source, ObjectType: f.via.example(), Handler: handler})
	runs(t, c.RunWithContext)
	return &piece{name: "Controller", store: stored, absent: absent{follower: c}, kept: func(t *testing.T, _ *course) {
		require.True(t, c.HasSynced())
		require.NotEmpty(t, handler.told(t, f))
	}}
}

func indexerPiece(t *testing.T, f *feed) *piece {
	s := newIndexer()
	return &piece{name: "Indexer", store: s, absent: absent{follower: f.reflect(t, s)}, kept: func(t *testing.T, _ *course) {
		require.NotEmpty(t, s.ListIndexFuncValues(zone))
		requireIndexed(t, s)
	}}
}

func threadSafePiece(t *testing.T, f *feed) *piece {
	s := newThreadSafeStore()
	return &piece{name: "ThreadSafeStore", store: s, absent: absent{follower: f.reflect(t, s)}, kept: func(t *testing.T, _ *course) {
		require.NotEmpty(t, s.ListIndexFuncValues(zone))
		requireIndexed(t, s)
	}}
}

// undeltaPiece: what was pushed last is all that there is.
func undeltaPiece(t *testing.T, f *feed) *piece {
	p := newPushed()
	var last map[string]seen
	return &piece{name: "UndeltaStore", store: p, absent: absent{follower: f.reflect(t, p)}, kept: func(t *testing.T, _ *course) {
		want := map[string]seen{}
		for _, obj := range p.List() {
			want[mustInternal(t, obj).Name] = look(t, obj)
		}
		eventually(t, "the last push is another state", func(context.Context) error {
			if states := p.take(t); len(states) > 0 {
				last = states[len(states)-1]
			}
			return errIf(!assert.ObjectsAreEqual(want, last), "%v was pushed", last)
		})
	}}
}

// ttlPiece: as long as its clock stands still, nothing is forgotten.
func ttlPiece(t *testing.T, f *feed) *piece {
	e := newExpiring()
	return &piece{name: "ExpirationCache", store: e, absent: absent{follower: f.reflect(t, e)}, kept: func(t *testing.T, _ *course) {
		require.Len(t, e.List(), len(e.ListKeys()))
		e.requireGone(t)
	}}
}

// listerPiece: listers say of each device what etcd says.
func listerPiece(t *testing.T, f *feed) *piece {
	indexer := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	return &piece{name: "listers", store: indexer, absent: absent{follower: f.reflect(t, indexer)}, kept: func(t *testing.T, c *course) {
		records := c.world.stored(t, c.namespace)
		for _, s := range []skin{typedSkin(f.via, indexer), genericSkin(indexer)} {
			all, err := s.in(c.namespace, labels.Everything())
			require.NoError(t, err)
			require.Len(t, all, len(records))
			for key, record := range records {
				_, name, err := cache.SplitMetaNamespaceKey(key)
				require.NoError(t, err)
				obj, err := s.get(c.namespace, name)
				require.NoError(t, err)
				require.NoError(t, same(obj, record))
			}
			(&listed{}).requireNotFound(t, s, c.namespace, "brief")
		}
	}}
}

// mutationCachePiece: it is told all writes, and in the end gives what is stored.
func mutationCachePiece(t *testing.T, f *feed) *piece {
	m := newMutated(t, f, cache.MutationCacheOptions{})
	return &piece{name: "MutationCache", store: m.indexer, absent: absent{follower: m},
		wrote: func(d *fleetv1.Device) {
			m.Mutation(f.own(t, d))
		},
		kept: func(t *testing.T, _ *course) { m.requireStored(t) },
	}
}

// mutationDetectorPiece: nobody writes to what was delivered.
func mutationDetectorPiece(t *testing.T, f *feed) *piece {
	s := newDetecting(newDetector(t))
	return &piece{name: "MutationDetector", store: s, absent: absent{follower: f.reflect(t, s)}, kept: func(t *testing.T, _ *course) {
		s.detector.requireSilence(t, 8)
	}}
}
