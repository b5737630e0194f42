// SPDX-License-Identifier: Apache-2.0

package clientgo

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
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
	fx := sharedFixture(t)
	ns := fx.newNamespace(t)
	start := fx.revision(t)
	d := fx.writer(t, ns)
	d.createMany(t, "early", 5)
	f := dynamicinformer.NewFilteredDynamicSharedInformerFactory(fx.dynamic(t), 0, ns, nil)
	devices := f.ForResource(version.WithResource("devices"))
	o, _ := observe(t, devices.Informer())
	runFactory(t, f)
	d.update(t, "early-001", "someone")
	d.delete(t, "early-002")
	d.create(t, "late")
	fx.requireEqual(t, devices.Informer().GetStore(), ns)
	fx.requireTold(t, o, ns)
	history := fx.history(t, ns, start)
	requireSubsequence(t, history, o.seen())
	requireDeletion(t, transport{}, history[ns+"/early-002"], o.awaitDeleted(t, ns+"/early-002"))

	lister := devices.Lister().ByNamespace(ns)
	got, err := lister.Get("late")
	require.NoError(t, err)
	require.Equal(t, version.WithKind("Device"), got.(*unstructured.Unstructured).GroupVersionKind())
	_, err = lister.Get("early-002")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	sensors, err := lister.List(labels.SelectorFromSet(labels.Set{"kind": "sensor"}))
	require.NoError(t, err)
	require.Len(t, sensors, 5)
	fx.cut(t)
	d.create(t, "later")
	fx.requireEqual(t, devices.Informer().GetStore(), ns)
}

func testDynamicSelector(t *testing.T, version schema.GroupVersion) {
	fx := sharedFixture(t)
	ns := fx.newNamespace(t)
	d := fx.writer(t, ns)
	d.create(t, "one")
	d.create(t, "two")
	f := dynamicinformer.NewFilteredDynamicSharedInformerFactory(fx.dynamic(t), 0, metav1.NamespaceAll, func(o *metav1.ListOptions) {
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
