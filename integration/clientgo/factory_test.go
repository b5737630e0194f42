// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet"
	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/clientset/versioned"
	informers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions"
	fleetinformers "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/generated/informers/externalversions/fleet/v1"
)

// TestSharedInformerFactory holds the contract of a generated factory. In process it
// is one factory for informers that package informer makes.
func TestSharedInformerFactory(t *testing.T) {
	t.Run("shares one informer of each type", func(t *testing.T) { bothWays(t, testFactoryShares) })
	t.Run("starts what it has, each once", func(t *testing.T) { bothWays(t, testFactoryStarts) })
	t.Run("waits for the sync of all that it started", func(t *testing.T) { bothWaysAtOnce(t, testFactoryWaits) })
	t.Run("shuts down when all have ended", func(t *testing.T) { bothWays(t, testFactoryShutdown) })
	t.Run("passes its options on", func(t *testing.T) { bothWaysAtOnce(t, testFactoryOptions) })
	t.Run("equals etcd in all versions", func(t *testing.T) { bothWays(t, testFactoryVersions) })
	t.Run("has typed informers", testFactoryTyped)
}

// factory is a generated factory, and the informer of the way's devices in it.
type factory struct {
	informers.SharedInformerFactory
	devices func() cache.SharedIndexInformer
}

func newFactory(t *testing.T, w *world, via way, namespace string, options ...informers.SharedInformerOption) factory {
	t.Helper()
	options = append(options, informers.WithNamespace(namespace))
	f := factory{SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(w.client(t), 0, options...)}
	f.devices = f.Fleet().V1().Devices().Informer
	if via.inProcess {
		f.devices = func() cache.SharedIndexInformer {
			return f.InformerFor(&fleet.Device{}, func(_ versioned.Interface, resync time.Duration) cache.SharedIndexInformer {
				return via.informer(t, w, namespace, resync, cache.Indexers{})
			})
		}
	}
	return f
}

// start starts the factory's informers until the test ends, and then waits for them.
func (f factory) start(t *testing.T) {
	t.Helper()
	f.StartWithContext(t.Context())
	t.Cleanup(f.Shutdown)
}

func testFactoryShares(t *testing.T, w *world, via way) {
	f := newFactory(t, w, via, w.newNamespace(t))
	one, other := f.devices(), f.Fleet().V1beta1().Devices().Informer()
	// Informers come in wrappers; the store tells whether they are one.
	require.Same(t, one.GetStore(), f.devices().GetStore())
	require.NotSame(t, one.GetStore(), other.GetStore(), "another version is another type")
	generic, err := f.ForResource(v1beta1.SchemeGroupVersion.WithResource("devices"))
	require.NoError(t, err)
	require.Same(t, other.GetStore(), generic.Informer().GetStore())
	_, err = f.ForResource(fleetv1.SchemeGroupVersion.WithResource("gadgets"))
	require.Error(t, err)
}

func testFactoryStarts(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "one")
	f := newFactory(t, w, via, ns)
	first := f.devices()
	o, _ := observe(t, first)
	f.start(t)
	w.requireEqual(t, first.GetStore(), ns)

	late := f.Fleet().V1beta1().Devices().Informer()
	synced := f.WaitForCacheSync(within(t).Done())
	require.Len(t, synced, 1, "the other one has not been started")
	require.False(t, late.HasSynced())
	f.start(t)
	w.requireEqual(t, late.GetStore(), ns)
	d.create(t, "two")
	w.requireTold(t, o, ns)
	require.Len(t, o.seen(), 2, "the first one runs twice")
}

func testFactoryWaits(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	w.writer(t, ns).create(t, "one")
	f := newFactory(t, w, via, ns)
	first := f.devices()
	second, r := recorded(t, w, via, ns)
	r.refuse(context.DeadlineExceeded)
	type held struct{ runtime.Object }
	f.InformerFor(&held{}, func(versioned.Interface, time.Duration) cache.SharedIndexInformer { return second })
	f.start(t)
	awaitSync(t, first.HasSyncedChecker())

	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	result := f.WaitForCacheSyncWithContext(impatient)
	require.ErrorIs(t, result.AsError(), context.Canceled)
	require.Equal(t, map[reflect.Type]bool{reflect.TypeOf(via.example()): true, reflect.TypeOf(&held{}): false}, result.Synced)

	r.refuse(nil)
	result = f.WaitForCacheSyncWithContext(within(t))
	require.NoError(t, result.AsError())
	require.NoError(t, difference(first.GetStore(), w.stored(t, ns)))
	require.NoError(t, difference(second.GetStore(), w.stored(t, ns)))
}

func testFactoryShutdown(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	f := newFactory(t, w, via, ns)
	first := f.devices()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.StartWithContext(ctx)
	awaitSync(t, first.HasSyncedChecker())
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		f.Shutdown()
	}()
	// It waits for the informer, which has not been told to end.
	w.writer(t, ns).create(t, "one")
	w.requireEqual(t, first.GetStore(), ns)
	select {
	case <-shut:
		t.Fatal("the factory has shut down, and its informer runs")
	default:
	}
	cancel()
	select {
	case <-shut:
	case <-within(t).Done():
		t.Fatal("the factory does not shut down")
	}
	require.True(t, first.IsStopped())
	late := f.Fleet().V1beta1().Devices().Informer()
	f.StartWithContext(t.Context())
	f.Shutdown()
	require.Empty(t, f.WaitForCacheSync(within(t).Done())[reflect.TypeOf(&v1beta1.Device{})])
	require.False(t, late.HasSynced(), "nothing is started after the end")
}

func testFactoryOptions(t *testing.T, w *world, via way) {
	ns, elsewhere := w.newNamespace(t), w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "one")
	d.update(t, "one", "chosen")
	d.create(t, "two")
	w.writer(t, elsewhere).create(t, "three")
	f := newFactory(t, w, via, ns,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "spec.owner=chosen" }),
		informers.WithTransform(func(obj any) (any, error) {
			obj.(metav1.Object).SetManagedFields(nil)
			return obj, nil
		}),
		informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{via.example().(metav1.Object): time.Second}))
	informer := f.devices()
	o, _ := observe(t, informer)
	f.start(t)
	want := []string{ns + "/one"}
	if via.inProcess { // what is selected is told to informer.New, not to the factory
		want = append(want, ns+"/two")
	}
	awaitSync(t, informer.HasSyncedChecker())
	require.ElementsMatch(t, want, informer.GetStore().ListKeys())
	n := o.await(t, "a resync", notification.resync)
	require.Empty(t, mustInternal(t, n.object).ManagedFields)
}

func testFactoryVersions(t *testing.T, w *world, via way) {
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.createMany(t, "early", 5)
	f := newFactory(t, w, via, ns)
	all := []cache.SharedIndexInformer{f.devices(), f.Fleet().V1beta1().Devices().Informer()}
	f.start(t)
	d.update(t, "early-001", "someone")
	d.delete(t, "early-002")
	d.create(t, "late")
	for _, informer := range all {
		w.requireEqual(t, informer.GetStore(), ns)
	}
	require.IsType(t, &v1beta1.Device{}, all[1].GetStore().List()[0])
}

// testFactoryTyped: handlers, indexers and listers that know the type.
func testFactoryTyped(t *testing.T) {
	w := theWorld(t)
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	f := newFactory(t, w, way{}, ns)
	typed := f.Fleet().V1().Devices()
	told := make(chan string, 10)
	_, err := typed.TypedInformer().AddTypedEventHandler(fleetinformers.DeviceHandlerFuncs{
		AddFunc:    func(d *fleetv1.Device) { told <- "add " + d.Spec.Owner },
		UpdateFunc: func(old, d *fleetv1.Device) { told <- "update " + old.Spec.Owner + " " + d.Spec.Owner },
		DeleteFunc: func(d fleetinformers.DeletedDevice) { told <- "delete " + d.OptionalObj.Spec.Owner },
	})
	require.NoError(t, err)
	require.NoError(t, typed.TypedInformer().AddTypedIndexers(fleetinformers.DeviceIndexers{
		"owner": func(d *fleetv1.Device) ([]string, error) { return []string{d.Spec.Owner}, nil },
	}))
	f.start(t)
	awaitSync(t, typed.Informer().HasSyncedChecker())
	d.create(t, "one")
	d.update(t, "one", "someone")
	for _, want := range []string{"add field-ops", "update field-ops someone"} {
		requireReceive(t, told, want)
	}
	found, err := typed.TypedInformer().GetTypedIndexer().ByTypedIndex("owner", "someone")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, w.version(t, ns, "one"), found[0].ResourceVersion)
	d.delete(t, "one")
	requireReceive(t, told, "delete someone")
}

func requireReceive(t *testing.T, from <-chan string, want string) {
	t.Helper()
	select {
	case got := <-from:
		require.Equal(t, want, got)
	case <-within(t).Done():
		t.Fatalf("%q does not come", want)
	}
}
