// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"errors"
	"os"
	"os/exec"
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
	"github.com/kube-watchcache/watchcache/informer"
	"github.com/kube-watchcache/watchcache/integration/internal/child"
	"github.com/kube-watchcache/watchcache/internal/memstore"
	"github.com/kube-watchcache/watchcache/internal/poddata"
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

// TestMutationDetector shows that the detector notices one who writes to what our
// cache has delivered, and that nobody does, least of all the cache.
func TestMutationDetector(t *testing.T) {
	promises(t, []clause{
		{"it notices a write to an object in a store", func(t *testing.T, f *feed) {
			s := newDetecting(newDetector(t))
			f.create(t, "x")
			awaitList(t, f.reflect(t, s))
			f.create(t, "y")
			f.update(t, "x", "two")
			f.world.requireEqual(t, s, f.namespace)
			s.detector.requireSilence(t, 3)
			for _, obj := range s.List() {
				s.detector.requireAlarm(t, obj)
			}
		}},
	})
	t.Run("nobody writes to what is delivered, in whatever way", testDeliveriesUntouched)
	t.Run("in a shared informer it ends the process", testDetectorEndsProcess)
}

// testDeliveriesUntouched takes from one cache, at the same time, by all ways that
// there are, and looks at everything again after the cache has gone on.
func testDeliveriesUntouched(t *testing.T) {
	w, d := theWorld(t), newDetector(t)
	f := newFeed(t, w, way{inProcess: true})
	f.createMany(t, "x", 5)
	var stores []cache.Store
	var away []absent
	for _, via := range []way{{inProcess: true}, {}} {
		for _, plain := range []bool{false, true} {
			for _, selector := range []string{"", "kind=sensor"} {
				own := feedOf(t, w, via, f.namespace)
				own.source = via.listerWatcher(t, w, f.namespace, func(o *metav1.ListOptions) { o.LabelSelector = selector })
				own.source.plain = plain
				s := newDetecting(d)
				r := own.reflect(t, s)
				stores, away = append(stores, s), append(away, absent{own.source, r, via.example()})
			}
		}
	}
	for _, a := range away {
		awaitList(t, a)
	}
	raw := takeRaw(t, f, d)
	f.update(t, "x-000", "two")
	f.label(t, "x-001", map[string]any{zone: "hh"})
	f.status(t, "x-002", fleetv1.DeviceReady)
	f.delete(t, "x-003")
	f.create(t, "x-003")
	takeRaw(t, f, d)
	for _, s := range stores {
		w.requireEqual(t, s, f.namespace)
	}
	relist(t, w, func() {
		f.update(t, "x-000", "three")
		f.delete(t, "x-004")
		f.create(t, "y")
	}, away...)
	for _, s := range stores {
		w.requireEqual(t, s, f.namespace)
	}
	d.requireSilence(t, 8*(5+5+5)+2*(5+1+5))
	d.requireAlarm(t, stores[0].List()[0])
	d.requireAlarm(t, raw)
}

// takeRaw takes what the cache gives to those who call it as a storage.Interface: a
// list, a single object, and a watch from the beginning, all up to date. It returns
// an object of the list.
func takeRaw(t *testing.T, f *feed, d *detector) runtime.Object {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	c := f.world.cacher()
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
	events, err := c.Watch(ctx, prefix, all)
	require.NoError(t, err)
	defer events.Stop()
	for range listed.Items {
		select {
		case event := <-events.ResultChan():
			require.Equal(t, watch.Added, event.Type)
			d.AddObject(event.Object.(runtime.CacheableObject).GetObject())
		case <-ctx.Done():
			t.Fatal("the watch does not begin with what there is")
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

// forging, in a process's environment, makes it the one that testDetectorEndsProcess
// starts.
const forging = "CLIENTGO_FORGING"

// testDetectorEndsProcess runs itself in a process of its own.
func testDetectorEndsProcess(t *testing.T) {
	if os.Getenv(forging) != "" {
		forge(t)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(within(t), self, "-test.v", "-test.run", "^TestMutationDetector$/^in_a_shared_informer_it_ends_the_process$")
	cmd.Env = append(os.Environ(), forging+"=true")
	cmd.SysProcAttr = child.Attributes()
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	require.True(t, errors.As(err, &ended), "%v\n%s", err, out)
	require.Contains(t, string(out), "ALTERED!")
	require.Contains(t, string(out), "panic: cache *example.Pod modified")
}

// forge writes to an object of a shared informer, and waits for what comes of it.
func forge(t *testing.T) {
	store := memstore.New(poddata.Prefix, poddata.New)
	c, err := cacher.New(cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, GroupResource: poddata.Resource,
		ResourcePrefix: poddata.Prefix, KeyFunc: poddata.Key, GetAttrsFunc: poddata.Attrs,
		NewFunc: poddata.New, NewListFunc: poddata.NewList, Codec: poddata.Codec(),
	})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	require.NoError(t, c.Wait(within(t)))
	pod := poddata.Pod("hamburg/x", "kind=sensor")
	require.NoError(t, c.Create(within(t), poddata.Prefix+"hamburg/x", pod, poddata.New(), 0))
	i := informer.New(c, 0, nil)
	runs(t, i.RunWithContext)
	requireClosed(t, i.HasSyncedChecker().Done())
	accessor, err := meta.Accessor(i.GetStore().List()[0])
	require.NoError(t, err)
	accessor.GetLabels()["kind"] = "forged"
	<-within(t).Done()
	t.Fatal("nobody minds")
}
