// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// consumer is one consumer of client-go that follows a scenario.
type consumer struct {
	name string
	detachable
	// store must be what etcd is at the end of a step; nil: the consumer has none.
	store cache.Store
	// check looks at what else it promises, at the end of a step; may be nil.
	check func(t *testing.T, c *scenario)
	// wrote is told the result of each write; may be nil.
	wrote func(*fleetv1.Device)
}

// consumers open one of each. The caller sets source and example.
var consumers = []func(*testing.T, *feed) *consumer{
	deltaConsumer, realConsumer, atomicConsumer, fifoConsumer, controllerConsumer, indexerConsumer, threadSafeConsumer,
	undeltaConsumer, ttlConsumer, listerConsumer, mutationCacheConsumer, mutationDetectorConsumer,
}

func deltaConsumer(t *testing.T, f *feed) *consumer {
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return queueFollower(t, f, "DeltaFIFO", known, cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{KnownObjects: known, EmitDeltaTypeReplaced: true}))
}

func realConsumer(t *testing.T, f *feed) *consumer {
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return queueFollower(t, f, "RealFIFO", known, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: known}))
}

func atomicConsumer(t *testing.T, f *feed) *consumer {
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	return queueFollower(t, f, "RealFIFO, atomic", known, cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{
		AtomicEvents: true, UnlockWhileProcessing: true, EmitDeltaTypeBookmark: true,
	}))
}

// queueConsumer pops a queue into a store, and notes what was popped as a handler would
// be told.
type queueConsumer struct {
	known cache.Store
	mu    struct {
		sync.Mutex
		told  []notification
		wrong error
	}
}

// queueFollower: of each object, what is popped is a subsequence of its states.
func queueFollower(t *testing.T, f *feed, name string, known cache.Store, queue cache.Queue) *consumer {
	t.Helper()
	c := &queueConsumer{known: known}
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
	return &consumer{name: name, store: known, detachable: detachable{follower: f.reflect(t, queue)}, check: func(t *testing.T, scenario *scenario) {
		require.True(t, queue.HasSynced())
		c.mu.Lock()
		defer c.mu.Unlock()
		require.NoError(t, c.mu.wrong)
		requireSubsequence(t, scenario.past, c.mu.told)
	}}
}

// process is a cache.PopProcessFunc.
func (c *queueConsumer) process(obj any, _ bool) error {
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

func (c *queueConsumer) noteLocked(kind kind, obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	old, exists, getErr := c.known.GetByKey(key)
	c.mu.wrong = errors.Join(c.mu.wrong, err, getErr)
	if kind == toldDelete && !exists {
		c.mu.wrong = errors.Join(c.mu.wrong, fmt.Errorf("%s is deleted and was not there", key))
	}
	c.mu.told = append(c.mu.told, notification{kind: kind, key: key, object: obj, old: old})
}

// noteAllLocked notes what a list of everything says: what is missing is deleted.
func (c *queueConsumer) noteAllLocked(objects []any) {
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

// fifoConsumer: of each object that is there the newest version was popped.
func fifoConsumer(t *testing.T, f *feed) *consumer {
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
	return &consumer{name: "FIFO", detachable: detachable{follower: f.reflect(t, queue)}, check: func(t *testing.T, c *scenario) {
		records := c.fixture.stored(t, c.namespace)
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

// controllerConsumer: its handler is told states that were, in their order, and in the
// end what etcd has.
func controllerConsumer(t *testing.T, f *feed) *consumer {
	handler := &observer{}
	stored, c := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: f.source, ObjectType: f.via.example(), Handler: handler})
	runs(t, c.RunWithContext)
	return &consumer{name: "Controller", store: stored, detachable: detachable{follower: c}, check: func(t *testing.T, scenario *scenario) {
		require.True(t, c.HasSynced())
		scenario.fixture.requireTold(t, handler, scenario.namespace)
		require.False(t, handler.overlapped.Load(), "the handler was called while it was busy")
		requireSubsequence(t, scenario.past, handler.seen())
	}}
}

func indexerConsumer(t *testing.T, f *feed) *consumer {
	s := newIndexer()
	return &consumer{name: "Indexer", store: s, detachable: detachable{follower: f.reflect(t, s)}, check: func(t *testing.T, _ *scenario) {
		require.NotEmpty(t, s.ListIndexFuncValues(zone))
		requireIndexed(t, s)
	}}
}

func threadSafeConsumer(t *testing.T, f *feed) *consumer {
	s := newThreadSafeStore()
	return &consumer{name: "ThreadSafeStore", store: s, detachable: detachable{follower: f.reflect(t, s)}, check: func(t *testing.T, _ *scenario) {
		require.NotEmpty(t, s.ListIndexFuncValues(zone))
		requireIndexed(t, s)
	}}
}

// undeltaConsumer: what was pushed last is all that there is.
func undeltaConsumer(t *testing.T, f *feed) *consumer {
	p := newPushed()
	var last map[string]contents
	return &consumer{name: "UndeltaStore", store: p, detachable: detachable{follower: f.reflect(t, p)}, check: func(t *testing.T, _ *scenario) {
		want := map[string]contents{}
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

// ttlConsumer: within its time to live nothing is forgotten.
func ttlConsumer(t *testing.T, f *feed) *consumer {
	s := cache.NewTTLStore(cache.DeletionHandlingMetaNamespaceKeyFunc, time.Hour)
	return &consumer{name: "ExpirationCache", store: s, detachable: detachable{follower: f.reflect(t, s)}, check: func(t *testing.T, _ *scenario) {
		require.Len(t, s.List(), len(s.ListKeys()))
	}}
}

// listerConsumer: listers say of each device, and of each selector, what etcd says.
func listerConsumer(t *testing.T, f *feed) *consumer {
	indexer := cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	return &consumer{name: "listers", store: indexer, detachable: detachable{follower: f.reflect(t, indexer)}, check: func(t *testing.T, c *scenario) {
		records := c.fixture.stored(t, c.namespace)
		for _, l := range []kindOfLister{typedLister(f.via, indexer), genericLister(indexer)} {
			for _, selector := range []string{"", zone, "!" + zone, zone + "=z1", zone + "!=z1", zone + " in (z0,z9)", zone + "=nowhere"} {
				l.requireLists(t, c.namespace, selector, records)
			}
			for key, record := range records {
				_, name, err := cache.SplitMetaNamespaceKey(key)
				require.NoError(t, err)
				obj, err := l.get(c.namespace, name)
				require.NoError(t, err)
				require.NoError(t, same(obj, record))
			}
			l.requireNotFound(t, c.namespace, "brief")
			l.requireNotFound(t, "nowhere", nameOf(2))
		}
	}}
}

// mutationCacheConsumer: it is told all writes, and in the end gives what is stored.
func mutationCacheConsumer(t *testing.T, f *feed) *consumer {
	m := newMutated(t, f, cache.MutationCacheOptions{})
	return &consumer{name: "MutationCache", store: m.indexer, detachable: detachable{follower: m},
		wrote: func(d *fleetv1.Device) {
			m.Mutation(f.own(t, d))
		},
		check: func(t *testing.T, _ *scenario) { m.requireStored(t) },
	}
}

// mutationDetectorConsumer: nobody writes to what was delivered.
func mutationDetectorConsumer(t *testing.T, f *feed) *consumer {
	s := newDetecting(newDetector(t))
	return &consumer{name: "MutationDetector", store: s, detachable: detachable{follower: f.reflect(t, s)}, check: func(t *testing.T, _ *scenario) {
		s.detector.requireSilence(t, 8)
	}}
}
