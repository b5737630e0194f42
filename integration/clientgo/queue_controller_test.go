// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

func TestController(t *testing.T) {
	promises(t, []clause{
		{"it processes what is popped, and so its store follows, whichever queue it has", controllerProcesses},
		{"an error of Process does not stop it", controllerGoesOn},
		{"HasSynced when the first list was processed, and not before", controllerHasSynced},
		{"LastSyncResourceVersion moves with the deliveries", controllerLastSync},
		{"it retries, and tells its WatchErrorHandler", controllerRetries},
		{"it resyncs when ShouldResync says so", controllerResyncs},
		{"it ends with its context, and so do its watch and its queue", controllerStops},
	})
}

// running is a controller that runs, and the store that its Process fills.
type running struct {
	cache.Controller
	known cache.Store
	queue cache.Queue
	stop  func()
}

// control runs a controller with a RealFIFO until the test ends or stop is called.
// The configuration may be changed before.
func (f *feed) control(t *testing.T, change func(*cache.Config)) *running {
	t.Helper()
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	config := &cache.Config{
		Queue:         cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: known}),
		ListerWatcher: f.source,
		ObjectType:    f.via.example(),
		Process:       func(obj any, _ bool) error { return store(known, obj.(cache.Deltas)) },
	}
	if change != nil {
		change(config)
	}
	c := &running{Controller: cache.New(config), known: known, queue: config.Queue}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.RunWithContext(ctx)
	}()
	c.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(c.stop)
	return c
}

// controllerProcesses: whichever queue it has.
func controllerProcesses(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	var away []absent
	var stores []cache.Store
	for _, open := range []func(cache.Store) cache.Queue{
		func(known cache.Store) cache.Queue {
			return cache.NewDeltaFIFOWithOptions(cache.DeltaFIFOOptions{KnownObjects: known, EmitDeltaTypeReplaced: true})
		},
		func(known cache.Store) cache.Queue {
			return cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: known})
		},
		func(cache.Store) cache.Queue {
			return cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true, UnlockWhileProcessing: true, EmitDeltaTypeBookmark: true})
		},
	} {
		own := feedOf(t, f.world, f.via, f.namespace)
		known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
		c := own.control(t, func(config *cache.Config) {
			config.Queue = open(known)
			config.Process = func(obj any, _ bool) error { return store(known, obj.(cache.Deltas)) }
		})
		away, stores = append(away, absent{own.source, c, f.via.example()}), append(stores, known)
	}
	requireEqual := func() {
		for _, known := range stores {
			f.world.requireEqual(t, known, f.namespace)
		}
	}
	requireEqual()
	f.create(t, "y")
	f.update(t, "x-000", "two")
	f.delete(t, "x-001")
	requireEqual()
	relist(t, f.world, func() {
		f.delete(t, "x-000")
		f.update(t, "x-002", "two")
		f.create(t, "x-000")
		f.delete(t, "y")
	}, away...)
	requireEqual()
}

// controllerGoesOn: the one that failed is not tried again, the next one is
// processed. The state after it is not worse than with one event less.
func controllerGoesOn(t *testing.T, f *feed) {
	var processed sync.Map
	c := f.control(t, func(config *cache.Config) {
		process := config.Process
		config.Process = func(obj any, initial bool) error {
			d := obj.(cache.Deltas).Newest()
			processed.Store(resourceVersionOf(d.Object), true)
			if d.Type == cache.Added {
				return errors.New("no")
			}
			return process(obj, initial)
		}
	})
	eventuallySynced(t, c)
	failed := f.create(t, "x")
	written := f.update(t, "x", "two")
	f.world.requireEqual(t, c.known, f.namespace)
	for _, d := range []*fleetv1.Device{failed, written} {
		_, ok := processed.Load(d.ResourceVersion)
		require.True(t, ok, d.ResourceVersion)
	}
}

func controllerHasSynced(t *testing.T, f *feed) {
	f.createMany(t, "x", 3)
	held, count := make(chan struct{}), atomic.Int32{}
	release := sync.OnceFunc(func() { close(held) })
	c := f.control(t, func(config *cache.Config) {
		process := config.Process
		config.Process = func(obj any, initial bool) error {
			if count.Add(1) == 3 {
				<-held
			}
			if !initial {
				return fmt.Errorf("%v is not of the first list", obj)
			}
			return process(obj, initial)
		}
	})
	t.Cleanup(release) // before that of control, which waits
	eventually(t, "the third object", func(context.Context) error { return errIf(count.Load() < 3, "not yet") })
	requireOpen(t, c.HasSyncedChecker().Done())
	release()
	requireClosed(t, c.HasSyncedChecker().Done())
	require.True(t, c.HasSynced())
	require.Len(t, c.known.ListKeys(), 3)
	f.world.requireEqual(t, c.known, f.namespace)
}

func controllerLastSync(t *testing.T, f *feed) {
	config := &cache.Config{
		Queue:         cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{AtomicEvents: true}),
		ListerWatcher: f.source, ObjectType: f.via.example(), Process: func(any, bool) error { return nil },
	}
	c := cache.New(config)
	require.Empty(t, c.LastSyncResourceVersion(), "before it runs")
	listed := f.create(t, "x")
	runs(t, c.RunWithContext)
	reach(t, c, listed)
	for i := range 5 {
		written := f.update(t, "x", fmt.Sprint("owner-", i))
		reach(t, c, written)
	}
	f.delete(t, "x")
	reachVersion(t, c, number(t, f.deleted(t, listed)))
}

func controllerRetries(t *testing.T, f *feed) {
	x := f.create(t, "x")
	refusal := errors.New("refused")
	f.source.refuse(refusal)
	told := make(chan error, 100)
	c := f.control(t, func(config *cache.Config) {
		config.WatchErrorHandlerWithContext = func(_ context.Context, r *cache.Reflector, err error) { told <- err }
	})
	select {
	case err := <-told:
		require.ErrorIs(t, err, refusal)
	case <-within(t).Done():
		t.Fatal("nobody is told")
	}
	require.False(t, c.HasSynced())
	f.source.refuse(nil)
	eventuallySynced(t, c)
	reach(t, c, x)
	f.world.requireEqual(t, c.known, f.namespace)
}

func controllerResyncs(t *testing.T, f *feed) {
	x, y := f.create(t, "x"), f.create(t, "y")
	var wanted atomic.Bool
	var mu sync.Mutex
	var resynced []cache.Delta
	c := f.control(t, func(config *cache.Config) {
		config.FullResyncPeriod = pollInterval
		config.ShouldResync = wanted.Load
		process := config.Process
		config.Process = func(obj any, initial bool) error {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range obj.(cache.Deltas) {
				if d.Type == cache.Sync {
					resynced = append(resynced, d)
					wanted.Store(false)
				}
			}
			return process(obj, initial)
		}
	})
	eventuallySynced(t, c)
	wanted.Store(true)
	eventually(t, "no resync", func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return errIf(len(resynced) < 2, "%d", len(resynced))
	})
	mu.Lock()
	defer mu.Unlock()
	changes := changesOf(t, resynced)
	require.Contains(t, changes, synced(t, x))
	require.Contains(t, changes, synced(t, y))
}

func controllerStops(t *testing.T, f *feed) {
	f.create(t, "x")
	c := f.control(t, nil)
	eventuallySynced(t, c)
	eventually(t, "no watch", func(context.Context) error { return errIf(f.source.watching() != 1, "not yet") })
	c.stop()
	_, err := c.queue.Pop(unexpected(t))
	require.ErrorIs(t, err, cache.ErrFIFOClosed)
	eventually(t, "the watch does not end", func(context.Context) error { return errIf(f.source.watching() != 0, "not yet") })
	f.update(t, "x", "two")
	require.Equal(t, "field-ops", mustInternal(t, c.known.List()[0]).Spec.Owner, "it goes on")
}
