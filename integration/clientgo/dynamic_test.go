// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"

	fleetv1 "github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1"
	"github.com/kube-watchcache/watchcache/examples/apiserver/pkg/apis/fleet/v1beta1"
)

// TestDynamicSharedInformerFactory holds the contract of dynamicinformer, over HTTPS
// and in each version. In process there are no dynamic clients.
func TestDynamicSharedInformerFactory(t *testing.T) {
	for _, version := range []schema.GroupVersion{fleetv1.SchemeGroupVersion, v1beta1.SchemeGroupVersion} {
		t.Run(version.Version, func(t *testing.T) {
			t.Run("equals etcd", func(t *testing.T) { testDynamicEquality(t, version) })
			t.Run("keeps to its selector", func(t *testing.T) { testDynamicSelector(t, version) })
		})
	}
	t.Run("shares one informer of each resource", testDynamicShares)
}

// runFactory starts a dynamic factory until the test ends.
func runFactory(t *testing.T, f dynamicinformer.DynamicSharedInformerFactory) {
	t.Helper()
	stop := make(chan struct{})
	f.Start(stop)
	t.Cleanup(func() {
		close(stop)
		f.Shutdown()
	})
	for resource, synced := range f.WaitForCacheSync(within(t).Done()) {
		require.True(t, synced, resource)
	}
}

func testDynamicEquality(t *testing.T, version schema.GroupVersion) {
	w := theWorld(t)
	ns := w.newNamespace(t)
	start := w.revision(t)
	d := w.writer(t, ns)
	d.createMany(t, "early", 5)
	f := dynamicinformer.NewFilteredDynamicSharedInformerFactory(w.dynamic(t), 0, ns, nil)
	devices := f.ForResource(version.WithResource("devices"))
	o, _ := observe(t, devices.Informer())
	runFactory(t, f)
	d.update(t, "early-001", "someone")
	d.delete(t, "early-002")
	d.create(t, "late")
	w.requireEqual(t, devices.Informer().GetStore(), ns)
	w.requireTold(t, o, ns)
	history := w.history(t, ns, start)
	requireSubsequence(t, history, o.seen())
	requireDeletion(t, way{}, history[ns+"/early-002"], o.awaitDeleted(t, ns+"/early-002"))

	got, err := devices.Lister().ByNamespace(ns).Get("late")
	require.NoError(t, err)
	require.Equal(t, version.WithKind("Device"), got.(*unstructured.Unstructured).GroupVersionKind())
	w.cut(t)
	d.create(t, "later")
	w.requireEqual(t, devices.Informer().GetStore(), ns)
}

func testDynamicSelector(t *testing.T, version schema.GroupVersion) {
	w := theWorld(t)
	ns := w.newNamespace(t)
	d := w.writer(t, ns)
	d.create(t, "one")
	d.create(t, "two")
	f := dynamicinformer.NewFilteredDynamicSharedInformerFactory(w.dynamic(t), 0, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = "spec.owner=" + ns
	})
	devices := f.ForResource(version.WithResource("devices")).Informer()
	o, _ := observe(t, devices)
	runFactory(t, f)
	require.Empty(t, devices.GetStore().List())
	chosen := d.update(t, "one", ns)
	o.awaitVersion(t, ns+"/one", chosen.ResourceVersion)
	d.update(t, "one", "somebody-else")
	o.awaitDeleted(t, ns+"/one")
	require.Empty(t, devices.GetStore().List())
}

func testDynamicShares(t *testing.T) {
	w := theWorld(t)
	f := dynamicinformer.NewDynamicSharedInformerFactory(w.dynamic(t), 0)
	resource := fleetv1.SchemeGroupVersion.WithResource("devices")
	require.Same(t, f.ForResource(resource).Informer(), f.ForResource(resource).Informer())
	require.NotSame(t, f.ForResource(resource).Informer(), f.ForResource(v1beta1.SchemeGroupVersion.WithResource("devices")).Informer())
}
