// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/cacher"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
)

// detector is a cache.MutationDetector that a test asks when it wants to. Those in
// shared informers look once a second, and end the process.
type detector struct {
	cache.MutationDetector
	added atomic.Int64
}

func newDetector(t *testing.T) *detector {
	t.Helper()
	return &detector{MutationDetector: cache.NewCacheMutationDetector(t.Name())}
}

// AddObject implements cache.MutationDetector.
func (d *detector) AddObject(obj any) {
	d.added.Add(1)
	d.MutationDetector.AddObject(obj)
}

// compare panics if an object is not as it was when it was added.
func (d *detector) compare() { d.MutationDetector.(interface{ CompareObjects() }).CompareObjects() }

// requireSilence wants all objects to be as they were, and at least n to have been
// added.
func (d *detector) requireSilence(t *testing.T, n int64) {
	t.Helper()
	require.GreaterOrEqual(t, d.added.Load(), n)
	require.NotPanics(t, d.compare)
}

// requireAlarm writes to an object that was added. The detector prints all of it,
// which nobody needs to see.
func (d *detector) requireAlarm(t *testing.T, obj any) {
	t.Helper()
	accessor, err := meta.Accessor(obj)
	require.NoError(t, err)
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer nowhere.Close()
	stdout := os.Stdout
	os.Stdout = nowhere
	defer func() { os.Stdout = stdout }()
	before := accessor.GetLabels()["kind"]
	accessor.GetLabels()["kind"] = "forged"
	require.PanicsWithValue(t, "cache "+t.Name()+" modified", d.compare)
	accessor.GetLabels()["kind"] = before
	require.NotPanics(t, d.compare)
}

// detecting is a store whose objects a detector watches over.
type detecting struct {
	cache.Store
	detector *detector
}

// Add implements cache.Store.
func (d detecting) Add(obj any) error {
	d.detector.AddObject(obj)
	return d.Store.Add(obj)
}

// Update implements cache.Store.
func (d detecting) Update(obj any) error {
	d.detector.AddObject(obj)
	return d.Store.Update(obj)
}

// Delete implements cache.Store.
func (d detecting) Delete(obj any) error {
	d.detector.AddObject(obj)
	return d.Store.Delete(obj)
}

// Replace implements cache.Store.
func (d detecting) Replace(objects []any, resourceVersion string) error {
	for _, obj := range objects {
		d.detector.AddObject(obj)
	}
	return d.Store.Replace(objects, resourceVersion)
}

func newDetecting(d *detector) detecting {
	return detecting{cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc), d}
}

// TestMutationDetector takes from one cache, at the same time, by all ways that
// there are, and looks at everything again after the cache has gone on: nobody
// writes to what was delivered, least of all the cache.
func TestMutationDetector(t *testing.T) {
	fx, d := sharedFixture(t), newDetector(t)
	f := newFeed(t, fx, transport{inProcess: true})
	f.createMany(t, "x", 5)
	var stores []cache.Store
	var away []detachable
	for _, via := range []transport{{inProcess: true}, {}} {
		for _, plain := range []bool{false, true} {
			for _, selector := range []string{"", "kind=sensor"} {
				own := feedOf(t, fx, via, f.namespace)
				own.source = via.listerWatcher(t, fx, f.namespace, func(o *metav1.ListOptions) { o.LabelSelector = selector })
				own.source.plain = plain
				s := newDetecting(d)
				r := own.reflect(t, s)
				stores, away = append(stores, s), append(away, detachable{own.source, r, via.example()})
			}
		}
	}
	for _, a := range away {
		awaitList(t, a)
	}
	raw := takeRaw(t, f, d)
	f.update(t, "x-000", "two")
	f.label(t, "x-001", map[string]any{"zone": "hh"})
	f.status(t, "x-002", fleetv1.DeviceReady)
	f.delete(t, "x-003")
	f.create(t, "x-003")
	takeRaw(t, f, d)
	for _, s := range stores {
		fx.requireEqual(t, s, f.namespace)
	}
	relist(t, fx, func() {
		f.update(t, "x-000", "three")
		f.delete(t, "x-004")
		f.create(t, "y")
	}, away...)
	for _, s := range stores {
		fx.requireEqual(t, s, f.namespace)
	}
	d.requireSilence(t, 8*(5+5+5)+2*(5+1+5))
	d.requireAlarm(t, stores[0].List()[0])
	d.requireAlarm(t, raw)
}

// takeRaw takes what the cache gives to callers of its storage.Interface: a
// list, a single object, and a watch from the beginning, all up to date.
// takeRaw returns an object of the list.
func takeRaw(t *testing.T, f *feed, d *detector) runtime.Object {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	c := f.fixture.cacher()
	prefix := c.Config().ResourcePrefix + f.namespace + "/"
	all := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	all.Predicate.GetAttrs = c.Config().GetAttrsFunc

	listed := &fleet.DeviceList{}
	require.NoError(t, c.GetList(ctx, prefix, all, listed))
	require.NotEmpty(t, listed.Items)
	for i := range listed.Items {
		d.AddObject(&listed.Items[i])
	}
	single := &fleet.Device{}
	require.NoError(t, c.Get(ctx, prefix+"x-000", storage.GetOptions{}, single))
	d.AddObject(single)
	events, err := c.Watch(new(cacher.ListEncodings).ShareInitialEvents(ctx), prefix, all)
	require.NoError(t, err)
	defer events.Stop()
	for range listed.Items {
		select {
		case event := <-events.ResultChan():
			require.Equal(t, watch.Added, event.Type)
			d.AddObject(event.Object.(runtime.CacheableObject).GetObject())
		case <-ctx.Done():
			require.FailNow(t, "the watch does not begin with what there is")
		}
	}
	return &listed.Items[0]
}

// status writes a device's status.
func (f *feed) status(t *testing.T, name string, phase fleetv1.DevicePhase) *fleetv1.Device {
	t.Helper()
	api := f.client.FleetV1().Devices(f.namespace)
	d, err := api.Get(within(t), name, metav1.GetOptions{})
	require.NoError(t, err)
	d.Status.Phase = phase
	written, err := api.UpdateStatus(within(t), d, metav1.UpdateOptions{})
	require.NoError(t, err)
	return written
}
